// A communicator that hands everything on to another, for tests that change one thing about it.
#pragma once

#include <memory>
#include <string>

#include "dtrain/comm/communicator.h"

namespace dtrain::test {

class ForwardingCommunicator : public comm::Communicator {
 public:
  explicit ForwardingCommunicator(comm::Communicator& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  std::uint32_t generation() const override { return inner_.generation(); }
  std::string_view backend() const override { return inner_.backend(); }
  std::unique_ptr<comm::Buffer> allocate(std::size_t bytes) override { return inner_.allocate(bytes); }
  std::unique_ptr<comm::Buffer> allocate_common(std::size_t bytes) override { return inner_.allocate_common(bytes); }
  using comm::Communicator::all_reduce;
  comm::Work all_reduce(const void* in, void* out, std::size_t count, comm::DataType type,
                        const comm::ReduceOptions& options) override {
    return inner_.all_reduce(place_of(in), place_of(out), count, type, options);
  }
  comm::Work reduce_scatter(const void* in, void* out, std::size_t count, comm::DataType type,
                            const comm::ReduceOptions& options) override {
    return inner_.reduce_scatter(place_of(in), place_of(out), count, type, options);
  }
  comm::Work all_gather(const void* in, void* out, std::size_t count, comm::DataType type, int bucket) override {
    return inner_.all_gather(place_of(in), place_of(out), count, type, bucket);
  }
  comm::Work reduce_parts(void* data, std::size_t count, comm::DataType type,
                          const comm::ReduceOptions& options) override {
    return inner_.reduce_parts(place_of(data), count, type, options);
  }
  comm::Work gather_parts(void* data, std::size_t count, comm::DataType type, int bucket) override {
    return inner_.gather_parts(place_of(data), count, type, bucket);
  }
  comm::Work reduce(const void* in, void* out, std::size_t count, comm::DataType type, int root,
                    const comm::ReduceOptions& options) override {
    return inner_.reduce(place_of(in), place_of(out), count, type, root, options);
  }
  comm::Work broadcast(void* data, std::size_t count, comm::DataType type, int root) override {
    return inner_.broadcast(place_of(data), count, type, root);
  }
  comm::Work barrier() override { return inner_.barrier(); }
  void begin_group() override { inner_.begin_group(); }
  void end_group() override { inner_.end_group(); }
  void progress() override { inner_.progress(); }
  void abort(const std::string& cause) override { inner_.abort(cause); }

 protected:
  // Where the inner communicator finds this memory.
  virtual void* place_of(const void* data) const { return const_cast<void*>(data); }

  comm::Communicator& inner_;
};

}  // namespace dtrain::test
