#include "nccl/nccl_api.h"

#include <algorithm>
#include <cstring>

#include "collective/issuing.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "nccl/nccl_core.h"

namespace dtrain::comm {
namespace {

// Device memory from NCCL, registered with the communicator: peers and network cards reach it without a copy.
class NcclBuffer final : public Buffer {
 public:
  NcclBuffer(std::shared_ptr<NcclCore> core, std::size_t bytes) : core_(std::move(core)), bytes_(bytes) {
    const NcclApi& api = *core_->setup().api;
    const std::size_t size = std::max<std::size_t>(bytes, 1);
    try {
      check_nccl(api, api.ncclMemAlloc(&data_, size), "allocating GPU memory");
    } catch (const CommError& error) {
      throw CommError(format_bytes(static_cast<double>(size)) + " for what the ranks exchange: " + error.what(),
                      "the GPU's memory may be full: lower hyperparameters.global_batch_size; with "
                      "optimizations.sharded_optimizer: false parameters need no such memory; nvidia-smi shows other "
                      "processes");
    }
    try {
      check_cuda(api, api.cudaMemsetAsync(data_, 0, size, core_->stream()), "clearing GPU memory");
      core_->link().use([&](ncclComm_t comm) {
        check_nccl(api, api.ncclCommRegister(comm, data_, size, &handle_), "registering GPU memory", comm);
      });
    } catch (const CommError&) {
      static_cast<void>(api.ncclMemFree(data_));
      throw;
    }
  }
  ~NcclBuffer() override {
    core_->let_device_finish();  // ncclMemFree() does not wait for operations that still use the memory
    core_->link().deregister(handle_);
    static_cast<void>(core_->setup().api->ncclMemFree(data_));
  }
  NcclBuffer& operator=(NcclBuffer&&) = delete;
  std::span<std::byte> bytes() override { return {static_cast<std::byte*>(data_), bytes_}; }

 private:
  std::shared_ptr<NcclCore> core_;
  std::size_t bytes_;
  void* data_ = nullptr;
  void* handle_ = nullptr;
};

NcclWaiting waiting_for(ControlPlane& control, const CommunicatorOptions& options) {
  return {options.timeout,
          [&control] {
            if (const auto failure = control.failure()) throw CommError(failure_text(*failure));
          },
          [&control] {
            std::string text;
            for (int r = 0; r < control.world().size; ++r) {
              if (r == control.world().rank) continue;
              text += (text.empty() ? "rank " : ", rank ") + std::to_string(r) + " is " +
                      std::string(name_of(control.peer_state(r)));
            }
            return text;
          }};
}

class Nccl final : public IssuingCommunicator, public NcclCommunicator {
 public:
  Nccl(const NcclSetup& setup, std::unique_ptr<NcclLink> link)
      : generation_(setup.control.generation()), core_(std::make_shared<NcclCore>(setup, std::move(link))) {
    // The callback may outlive the communicator.
    setup.control.on_failure([weak = std::weak_ptr<NcclCore>(core_)](const RankFailure& failure) {
      if (const auto alive = weak.lock()) alive->abort(failure_text(failure));
    });
  }
  ~Nccl() override { core_->close(); }

  int rank() const override { return core_->rank(); }
  int world_size() const override { return core_->world_size(); }
  std::uint32_t generation() const override { return generation_; }
  std::string_view backend() const override { return "nccl"; }

  std::unique_ptr<Buffer> allocate(std::size_t bytes) override {
    agree(Kind::kAllocate, bytes);
    core_->hand_over_all();
    core_->throw_if_failed();
    const DeviceGuard guard(*core_->setup().api, core_->setup().nccl.device);
    auto buffer = std::make_unique<NcclBuffer>(core_, bytes);
    core_->synchronize("clearing GPU memory");
    return buffer;
  }
  std::unique_ptr<Buffer> allocate_common(std::size_t bytes) override {
    agree(Kind::kAllocateCommon, bytes);
    return nullptr;
  }
  void begin_group() override { core_->begin_group(); }
  void end_group() override { core_->end_group(); }
  void progress() override { core_->progress(); }
  void abort(const std::string& cause) override { core_->abort(cause); }

  void order_after(void* stream, const Work& work) override {
    core_->order_after(static_cast<cudaStream_t>(stream), work.sequence());
  }
  void begin_capture() override { core_->begin_capture(NcclCore::CaptureFor::kReplays); }
  void begin_rehearsal() override { core_->begin_capture(NcclCore::CaptureFor::kRehearsal); }
  void end_capture() override { core_->end_capture(); }
  void replayed() override { core_->replayed(); }
  bool compares() const override { return core_->compares(); }
  std::unique_ptr<NcclCommunicator> shrink(ControlPlane& control, const std::vector<int>& excluded,
                                           const std::string& name) override;

 private:
  Work issue(const Descriptor& descriptor, const void* in, void* out) override {
    check_reduction(descriptor, world_size());
    return Work(core_->issue(descriptor, in, out));
  }
  void agree(Kind kind, std::size_t bytes) {
    Descriptor descriptor;
    descriptor.kind = kind;
    descriptor.count = bytes;
    core_->agree(descriptor);
  }

  const std::uint32_t generation_;
  const std::shared_ptr<NcclCore> core_;
};

std::unique_ptr<NcclCommunicator> Nccl::shrink(ControlPlane& control, const std::vector<int>& excluded,
                                               const std::string& name) {
  const World& world = control.world();
  int left_before = 0;
  int left = 0;
  for (int r = 0; r < world_size(); ++r) {
    if (std::find(excluded.begin(), excluded.end(), r) != excluded.end()) continue;
    left_before += r < rank();
    ++left;
  }
  if (left != world.size || left_before != world.rank) {
    throw CommError("shrink: rank " + std::to_string(rank()) + " becomes rank " + std::to_string(left_before) + " of " +
                    std::to_string(left) + ", and its control plane is that of rank " + std::to_string(world.rank) +
                    " of " + std::to_string(world.size));
  }
  NcclSetup setup{core_->setup().api, control, core_->setup().nccl, core_->setup().options};
  setup.nccl.name = name;
  const bool failed = core_->failed();
  control.barrier(name + "/shrink");
  const DeviceGuard guard(*setup.api, setup.nccl.device);
  auto link = core_->link().shrink(excluded, failed, waiting_for(control, setup.options));
  core_->abort("the communicator was shrunk to " + std::to_string(left) + " ranks");
  return std::make_unique<Nccl>(setup, std::move(link));
}

// Returns rank 0's id, and checks that every rank has the same version of NCCL.
ncclUniqueId agree_on_id(const NcclApi& api, ControlPlane& control, const std::string& name) {
  const std::string version = nccl_version_text(checked_nccl_version(api));
  ncclUniqueId id{};
  std::string mine = version;
  if (control.world().rank == 0) {
    check_nccl(api, api.ncclGetUniqueId(&id), "making the id of a communicator");
    mine += " " + std::string(id.internal, sizeof id.internal);
  }
  const std::vector<std::string> all = control.gather(name + "/id", mine);
  const std::string theirs = all.front().substr(0, all.front().find(' '));
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == theirs) continue;
    throw CommError(
        "the ranks have different versions of NCCL: rank 0 " + theirs + ", rank " + std::to_string(r) + " " + all[r],
        "install the same libtorch on all hosts");
  }
  if (all.front().size() != theirs.size() + 1 + sizeof id.internal) throw CommError("rank 0 sent no NCCL id");
  std::memcpy(id.internal, all.front().data() + theirs.size() + 1, sizeof id.internal);
  return id;
}

}  // namespace

std::unique_ptr<NcclCommunicator> make_nccl_communicator_with(SharedNcclApi api, ControlPlane& control,
                                                              const NcclOptions& nccl,
                                                              const CommunicatorOptions& options) {
  NcclSetup setup{std::move(api), control, nccl, options};
  if (!setup.options.log) setup.options.log = make_null_logger();
  int devices = 0;
  check_cuda(*setup.api, setup.api->cudaGetDeviceCount(&devices), "looking for GPUs");
  if (nccl.device < 0 || nccl.device >= devices) {
    throw CommError("there is no GPU " + std::to_string(nccl.device) + ": CUDA sees " + std::to_string(devices));
  }
  const ncclUniqueId id = agree_on_id(*setup.api, control, nccl.name);
  const DeviceGuard guard(*setup.api, nccl.device);
  auto link =
      NcclLink::connect(setup.api, id, control.world().rank, control.world().size, waiting_for(control, setup.options));
  return std::make_unique<Nccl>(setup, std::move(link));
}

}  // namespace dtrain::comm
