// The training state, listed once. Every class that holds a part of it lists that part in a method
// visit(StateVisitor&). A visitor (a checkpoint, a test) reads or replaces each entry.
//
// State is all that determines the weights of later steps. It is visited between two optimizer steps, while no window
// of gradients is open. These are no state: values that follow from the options; measurements, and the buckets and the
// strategy that follow from them (all give the same bits); and statistics of compression. There is no random state
// either, because libtorch is seeded anew before each call of the trial and of its data (loop/random_seed.h).
//
// Entries have paths, such as "optimizer/exp_avg/layer.weight". The same options and model give the same paths.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>

namespace dtrain::train {

class StateVisitor {
 public:
  virtual ~StateVisitor() = default;

  // True if this visitor replaces the entries.
  virtual bool replaces() const = 0;
  // True if this visitor needs complete values on every rank, even of entries that the ranks have divided among
  // themselves. Otherwise it gets tensors of the right name and shape that hold only this rank's part, or nothing
  // (at::kMeta).
  virtual bool needs_whole() const { return true; }
  // False if this visitor leaves out what updates change alike on every rank: parameters, the optimizer's tensors. Then
  // they are not visited.
  virtual bool needs_shared() const { return true; }

  // Visits the tensor's elements; its memory, shape and type stay.
  void tensor(std::string_view name, const at::Tensor& value) { on_tensor(path_of(name), value); }
  void number(std::string_view name, std::integral auto& value) {
    std::int64_t wide = static_cast<std::int64_t>(value);
    on_number(path_of(name), wide);
    value = static_cast<std::remove_cvref_t<decltype(value)>>(wide);
  }
  void number(std::string_view name, std::optional<std::int64_t>& value) {
    bool known = value.has_value();
    std::int64_t number_or_zero = value.value_or(0);
    number(std::string(name) + "_known", known);
    number(name, number_or_zero);
    value = known ? std::optional(number_or_zero) : std::nullopt;
  }
  void real(std::string_view name, std::optional<double>& value) {
    bool known = value.has_value();
    double real_or_zero = value.value_or(0);
    number(std::string(name) + "_known", known);
    on_real(path_of(name), real_or_zero);
    value = known ? std::optional(real_or_zero) : std::nullopt;
  }
  void real(std::string_view name, double& value) { on_real(path_of(name), value); }
  void reals(std::string_view name, std::vector<float>& values) { on_reals(path_of(name), values); }
  void text(std::string_view name, std::string& value) { on_text(path_of(name), value); }

  // Visits the entries that `part` lists, under the name.
  void part(std::string_view name, auto& part) {
    const std::size_t length = prefix_.size();
    prefix_ += std::string(name) + "/";
    part.visit(*this);
    prefix_.resize(length);
  }

 protected:
  virtual void on_tensor(const std::string& path, at::Tensor value) = 0;
  virtual void on_number(const std::string& path, std::int64_t& value) = 0;
  virtual void on_real(const std::string& path, double& value) = 0;
  virtual void on_reals(const std::string& path, std::vector<float>& values) = 0;
  virtual void on_text(const std::string& path, std::string& value) = 0;

 private:
  std::string path_of(std::string_view name) const { return prefix_ + std::string(name); }

  std::string prefix_;
};

}  // namespace dtrain::train
