// A communicator that turns every call into one: issue(descriptor, in, out). It checks the arguments, so that backends
// check them in the same way. Threads: see Communicator.
#pragma once

#include "collective/descriptor.h"
#include "dtrain/comm/communicator.h"

namespace dtrain::comm {

class IssuingCommunicator : public virtual Communicator {
 public:
  using Communicator::all_reduce;
  Work all_reduce(const void* in, void* out, std::size_t count, DataType type, const ReduceOptions& options) override;
  Work reduce_scatter(const void* in, void* out, std::size_t count, DataType type,
                      const ReduceOptions& options) override;
  Work all_gather(const void* in, void* out, std::size_t count, DataType type, int bucket) override;
  Work reduce_parts(void* data, std::size_t count, DataType type, const ReduceOptions& options) override;
  Work gather_parts(void* data, std::size_t count, DataType type, int bucket) override;
  Work reduce(const void* in, void* out, std::size_t count, DataType type, int root,
              const ReduceOptions& options) override;
  Work broadcast(void* data, std::size_t count, DataType type, int root) override;
  Work barrier() override;

 protected:
  // Issues an operation whose `descriptor` has no sequence number yet. The pointers are null only if it has no data,
  // and `out` where a reduce() gives this rank no result.
  virtual Work issue(const Descriptor& descriptor, const void* in, void* out) = 0;
  // Checks that all ranks make the same allocation, outside of groups.
  void agree(Kind kind, std::size_t bytes, bool group_open);

 private:
  Work checked(const Descriptor& descriptor, const void* in, void* out);
  Work reduction(Kind kind, std::size_t count, DataType type, const ReduceOptions& options, const void* in, void* out,
                 int root = -1);
  void check_root(const char* operation, int root) const;
};

}  // namespace dtrain::comm
