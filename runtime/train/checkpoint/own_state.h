// What is a rank's own in the training state, as a record in memory that is written after each batch: values lie there
// as they are, no text is formatted, and nothing is allocated for it. The same program reads it on the same host.
#pragma once

#include <cstddef>
#include <span>

#include "state_visitor.h"

namespace dtrain::train {

class OwnStateWriter final : public StateVisitor {
 public:
  // The memory begins at an address for any type.
  explicit OwnStateWriter(std::span<std::byte> to) : to_(to) {}
  bool replaces() const override { return false; }
  bool needs_whole() const override { return false; }
  bool needs_shared() const override { return false; }
  // The bytes that the record needs, also where it does not fit: then it is not whole.
  std::size_t bytes() const { return bytes_; }
  bool fits() const { return bytes_ <= to_.size(); }

 private:
  void on_tensor(const std::string& path, at::Tensor value) override;
  void on_number(const std::string& path, std::int64_t& value) override;
  void on_real(const std::string& path, double& value) override;
  void on_reals(const std::string& path, std::vector<float>& values) override;
  void on_text(const std::string& path, std::string& value) override;

  struct Head;
  std::byte* add(const Head& head, const std::string& path, std::size_t bytes);
  void add_bytes(const Head& head, const std::string& path, std::span<const std::byte> bytes);

  const std::span<std::byte> to_;
  std::size_t bytes_ = 0;
  friend void visit_own_state(std::span<const std::byte> record, StateVisitor& visitor);
};

// Visits the entries of a record. The tensors are in the record's memory.
void visit_own_state(std::span<const std::byte> record, StateVisitor& visitor);

}  // namespace dtrain::train
