#pragma once

#include <memory>
#include <string>

#include "dtrain/comm/communicator.h"

namespace dtrain::train {

// A communicator whose ranks cannot map each other's memory, as those of several hosts.
class NoCommonMemory final : public comm::Communicator {
 public:
  explicit NoCommonMemory(comm::Communicator& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  std::uint32_t generation() const override { return inner_.generation(); }
  std::string_view backend() const override { return inner_.backend(); }
  std::unique_ptr<comm::Buffer> allocate(std::size_t bytes) override { return inner_.allocate(bytes); }
  std::unique_ptr<comm::Buffer> allocate_common(std::size_t) override { return nullptr; }
  comm::Work all_reduce(const void* in, void* out, std::size_t count, comm::DataType type,
                        const comm::ReduceOptions& options) override {
    return inner_.all_reduce(in, out, count, type, options);
  }
  comm::Work reduce_scatter(const void* in, void* out, std::size_t count, comm::DataType type,
                            const comm::ReduceOptions& options) override {
    return inner_.reduce_scatter(in, out, count, type, options);
  }
  comm::Work all_gather(const void* in, void* out, std::size_t count, comm::DataType type, int bucket) override {
    return inner_.all_gather(in, out, count, type, bucket);
  }
  comm::Work reduce_parts(void* data, std::size_t count, comm::DataType type,
                          const comm::ReduceOptions& options) override {
    return inner_.reduce_parts(data, count, type, options);
  }
  comm::Work gather_parts(void* data, std::size_t count, comm::DataType type, int bucket) override {
    return inner_.gather_parts(data, count, type, bucket);
  }
  comm::Work broadcast(void* data, std::size_t count, comm::DataType type, int root) override {
    return inner_.broadcast(data, count, type, root);
  }
  comm::Work barrier() override { return inner_.barrier(); }
  void begin_group() override { inner_.begin_group(); }
  void end_group() override { inner_.end_group(); }
  void progress() override { inner_.progress(); }
  void abort(const std::string& cause) override { inner_.abort(cause); }

 private:
  comm::Communicator& inner_;
};

}  // namespace dtrain::train
