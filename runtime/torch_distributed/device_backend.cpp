#include "dtrain/torch_distributed/device_backend.h"

#include <algorithm>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "device_records.h"

namespace dtrain::torch_distributed {
namespace {

std::int64_t bytes_in(const DeviceBackend::Tensors& tensors) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.layout() == at::kStrided) bytes += static_cast<std::int64_t>(tensor.nbytes());
  }
  return bytes;
}

std::int64_t bytes_in(const std::vector<DeviceBackend::Tensors>& lists) {
  std::int64_t bytes = 0;
  for (const DeviceBackend::Tensors& tensors : lists) bytes += bytes_in(tensors);
  return bytes;
}

// The program's group has the backend as its part, and would never be destroyed.
template <class Group>
void forget_program(Group& group) {
  if constexpr (requires { group.process_group; }) group.process_group.reset();
}

template <class Group>
void forget_parent(Group& group) {
  if constexpr (requires { group.split_from; }) group.split_from.reset();
}

bool is_made_for(const DeviceBackend::OptionsPtr& options) {
  return options && options->backend != "dtrain";
}

}  // namespace

DeviceBackend::DeviceBackend(c10d::DistributedBackendOptions group, Parts parts, Make make, OptionsPtr given)
    : c10d::Backend(group.group_rank, group.group_size),
      group_(std::move(group)),
      host_(std::move(parts.host)),
      make_(std::move(make)),
      given_(std::move(given)),
      options_(c10::make_intrusive<Options>("dtrain", std::chrono::duration_cast<Milliseconds>(group_.timeout))),
      last_child_(Part()) {
  options_->group_name = group_.group_id;
  options_->global_ranks_in_group.assign(group_.global_ranks_in_group.begin(), group_.global_ranks_in_group.end());
  forget_program(group_);
  if (parts.device) std::call_once(once_, [&] { adopt(std::move(parts.device), parts.kind); });
}

DeviceBackend::~DeviceBackend() = default;

// --- the parts

DeviceBackend::Part DeviceBackend::device_part() const {
  const std::scoped_lock lock(mutex_);
  return device_;
}

c10d::Backend& DeviceBackend::made_part() const {
  const Part part = device_part();
  TORCH_CHECK(part, "dtrain: the process group has had no operation on a GPU yet");
  return *part;
}

void DeviceBackend::adopt(Part part, c10::Device device) {
  if (!pg_uid_.empty()) part->setGroupUid(pg_uid_);
  part->setGroupDesc(pg_desc_);
  if (bound_device_id_) part->setBoundDeviceId(bound_device_id_);
  kind_ = device;
  records_ = std::make_shared<DeviceRecords>(*part, device);
  const std::scoped_lock lock(mutex_);
  device_ = std::move(part);
}

c10d::Backend& DeviceBackend::part_for(c10::Device device) {
  if (is_for_host(device)) return *host_;
  std::call_once(once_, [&] {
    TORCH_CHECK(make_, "dtrain: there is no group for tensors on ", device);
    c10d::DistributedBackendOptions group = group_;
    group.store = c10::make_intrusive<c10d::PrefixStore>("device", group_.store);
    group.timeout = options_->timeout;
    adopt(make_(group, given_, device, bound_device_id_.has_value()), device);
    forget_parent(group_);
  });
  return *device_;
}

DeviceBackend::OptionsPtr DeviceBackend::getBackendOptions() {
  const Part part = device_part();
  return part ? part->getBackendOptions() : options_;
}

void DeviceBackend::setTimeout(Milliseconds timeout) {
  options_->timeout = timeout;
  if (host_) host_->setTimeout(timeout);
  if (const Part part = device_part()) part->setTimeout(timeout);
}

std::uint64_t DeviceBackend::getSequenceNumberForGroup() {
  const Part part = device_part();
  std::uint64_t sequence = part ? part->getSequenceNumberForGroup() : 0;
  if (host_) sequence += host_->getSequenceNumberForGroup();
  return sequence;
}

c10d::ErrorType DeviceBackend::getError() {
  if (host_) {
    if (const c10d::ErrorType error = host_->getError(); error != c10d::ErrorType::SUCCESS) return error;
  }
  const Part part = device_part();
  return part ? part->getError() : c10d::ErrorType::SUCCESS;
}

void DeviceBackend::eagerConnectSingleDevice(at::Device device) {
  c10d::Backend& part = part_for(device);
  if (part.supportsSplitting()) part.eagerConnectSingleDevice(device);
}

void DeviceBackend::abort() {
  if (host_) host_->abort();
  if (const Part part = device_part()) part->abort();
}

void DeviceBackend::shutdown() {
  if (const Part part = device_part()) part->shutdown();
  if (records_) records_->drain();
  if (host_) host_->shutdown();
}

void DeviceBackend::registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  c10d::Backend& part = made_part();
  onCompletionHook_ = hook;  // hasHooks() looks at it
  if (!records_->set_hook(hook)) part.registerOnCompletionHook(std::move(hook));
}

void DeviceBackend::waitForPendingWorks() {
  if (const Part part = device_part()) part->waitForPendingWorks();
}

void DeviceBackend::enableCollectivesTiming() {
  if (const Part part = device_part()) part->enableCollectivesTiming();
}

DeviceBackend::Part DeviceBackend::split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                         const OptionsPtr& options) {
  if (!options->group_name.empty() && options->group_name == last_split_) return last_child_.lock();
  const auto place = std::find(ranks.begin(), ranks.end(), rank_);
  Parts parts;
  if (host_) {
    auto plain = c10::make_intrusive<Options>("dtrain", options->timeout);
    plain->group_name = options->group_name;
    parts.host = host_->split(c10::make_intrusive<c10d::PrefixStore>("host", store), ranks, plain);
  }
  last_split_ = options->group_name;
  last_child_ = c10::weak_intrusive_ptr<c10d::Backend>(Part());
  c10d::DistributedBackendOptions group;
  group.store = store;
  group.group_size = static_cast<int>(ranks.size());
  group.timeout = options->timeout;
  group.group_id = options->group_name;
  if (const Part part = device_part()) {
    parts.kind = kind_;
    parts.device = part->split(c10::make_intrusive<c10d::PrefixStore>("device", store), ranks, options);
  }
  if (place == ranks.end()) return nullptr;
  group.group_rank = static_cast<int>(place - ranks.begin());
  const auto& names = group_.global_ranks_in_group;
  for (const int rank : ranks) {
    group.global_ranks_in_group.push_back(names.empty() ? rank : names[static_cast<std::size_t>(rank)]);
  }
  const auto child =
      c10::make_intrusive<DeviceBackend>(group, std::move(parts), make_, is_made_for(options) ? options : given_);
  child->bound_device_id_ = bound_device_id_;
  last_child_ = c10::weak_intrusive_ptr<c10d::Backend>(Part(child));
  return child;
}

// The CPU has no index.
bool DeviceBackend::supportsTensorAlloc(c10::DeviceIndex device) {
  const Part part = device < 0 ? host_ : device_part();
  return part && part->supportsTensorAlloc(device);
}

at::Tensor DeviceBackend::allocateTensor(long size, at::TensorOptions options) {
  return part_for(options.device()).allocateTensor(size, options);
}

std::shared_ptr<c10::Allocator> DeviceBackend::getMemAllocator() {
  return made_part().getMemAllocator();
}

bool DeviceBackend::supportsTimeEstimation() const {
  const Part part = device_part();
  return part && part->supportsTimeEstimation();
}

// --- coalesced operations

bool DeviceBackend::supportsCoalescing() const {
  const Part part = device_part();
  return !part || part->supportsCoalescing();  // NCCL's does
}

void DeviceBackend::startCoalescing() {
  coalesces_ = true;
  host_coalesces_ = device_coalesces_ = device_was_used_ = false;
  coalesced_.reset();
  // NCCL's groups enclose also what is no operation: abort().
  if (const Part part = device_part(); part && part->supportsCoalescing()) {
    part->startCoalescing();
    device_coalesces_ = true;
  }
}

DeviceBackend::WorkPtr DeviceBackend::endCoalescing() {
  TORCH_CHECK(coalesces_, "dtrain: there is no sequence of coalesced operations to end");
  coalesces_ = false;
  WorkPtr on_host, on_device;
  if (device_coalesces_) on_device = device_part()->endCoalescing();
  if (host_coalesces_) on_host = host_->endCoalescing();
  if (coalesced_) records_->issued(std::move(coalesced_), on_device);
  return device_was_used_ || !on_host ? on_device : on_host;
}

// --- operations

struct DeviceBackend::Operation {
  const char* name;
  const Tensors& tensors;  // of which the first shows the device
  std::int64_t bytes;
  bool is_async = true;
  bool is_message = false;
};

template <class Issue>
DeviceBackend::WorkPtr DeviceBackend::issue(const Operation& operation, const Issue& issue) {
  TORCH_CHECK(!operation.tensors.empty(), "dtrain:", operation.name, ": there is no tensor");
  return issue_on(operation.tensors.front().device(), operation, issue);
}

template <class Issue>
DeviceBackend::WorkPtr DeviceBackend::issue_on(c10::Device device, const Operation& operation, const Issue& issue) {
  c10d::Backend& part = part_for(device);
  bool& part_coalesces = is_for_host(device) ? host_coalesces_ : device_coalesces_;
  if (coalesces_ && !part_coalesces) {
    part.startCoalescing();
    part_coalesces = true;
  }
  if (is_for_host(device)) return issue(part);
  device_was_used_ = true;
  if (coalesced_) {
    coalesced_->facts.bytes += operation.bytes;
    return issue(part);
  }
  const std::uint64_t sequence = operation.is_message ? 0 : ++sequence_;
  std::unique_ptr<DeviceRecord> record =
      records_->begin(operation.name, sequence, operation.bytes, !operation.is_async);
  WorkPtr work = issue(part);
  if (!record) return work;
  if (coalesces_) {
    coalesced_ = std::move(record);
  } else {
    records_->issued(std::move(record), work);
  }
  return work;
}

DeviceBackend::WorkPtr DeviceBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return issue({"broadcast", tensors, bytes_in(tensors), options.asyncOp},
               [&](c10d::Backend& part) { return part.broadcast(tensors, options); });
}

DeviceBackend::WorkPtr DeviceBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return issue({"all_reduce", tensors, bytes_in(tensors), options.asyncOp},
               [&](c10d::Backend& part) { return part.allreduce(tensors, options); });
}

DeviceBackend::WorkPtr DeviceBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return issue({"sparse_all_reduce", tensors, bytes_in(tensors), options.asyncOp},
               [&](c10d::Backend& part) { return part.allreduce_sparse(tensors, options); });
}

DeviceBackend::WorkPtr DeviceBackend::allreduce_coalesced(Tensors& tensors,
                                                          const c10d::AllreduceCoalescedOptions& options) {
  return issue({"all_reduce", tensors, bytes_in(tensors), options.asyncOp},
               [&](c10d::Backend& part) { return part.allreduce_coalesced(tensors, options); });
}

DeviceBackend::WorkPtr DeviceBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return issue({"reduce", tensors, bytes_in(tensors), options.asyncOp},
               [&](c10d::Backend& part) { return part.reduce(tensors, options); });
}

DeviceBackend::WorkPtr DeviceBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                const c10d::AllgatherOptions& options) {
  return issue({"all_gather", inputs, bytes_in(outputs), options.asyncOp},
               [&](c10d::Backend& part) { return part.allgather(outputs, inputs, options); });
}

DeviceBackend::WorkPtr DeviceBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::AllgatherOptions& options) {
  return issue({"all_gather", {input}, bytes_in({output}), options.asyncOp},
               [&](c10d::Backend& part) { return part._allgather_base(output, input, options); });
}

DeviceBackend::WorkPtr DeviceBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& options) {
  return issue({"all_gather", inputs, bytes_in(outputs), options.asyncOp},
               [&](c10d::Backend& part) { return part.allgather_coalesced(outputs, inputs, options); });
}

DeviceBackend::WorkPtr DeviceBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                      const c10d::AllgatherOptions& options) {
  return issue({"all_gather", inputs, bytes_in(outputs), options.asyncOp},
               [&](c10d::Backend& part) { return part.allgather_into_tensor_coalesced(outputs, inputs, options); });
}

DeviceBackend::WorkPtr DeviceBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                     const c10d::ReduceScatterOptions& options) {
  return issue({"reduce_scatter", outputs, bytes_in(inputs), options.asyncOp},
               [&](c10d::Backend& part) { return part.reduce_scatter(outputs, inputs, options); });
}

DeviceBackend::WorkPtr DeviceBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                           const c10d::ReduceScatterOptions& options) {
  return issue({"reduce_scatter", {output}, bytes_in({input}), options.asyncOp},
               [&](c10d::Backend& part) { return part._reduce_scatter_base(output, input, options); });
}

DeviceBackend::WorkPtr DeviceBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                      const c10d::ReduceScatterOptions& options) {
  return issue({"reduce_scatter", outputs, bytes_in(inputs), options.asyncOp},
               [&](c10d::Backend& part) { return part.reduce_scatter_tensor_coalesced(outputs, inputs, options); });
}

DeviceBackend::WorkPtr DeviceBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const c10d::GatherOptions& options) {
  return issue({"gather", inputs, std::max(bytes_in(outputs), bytes_in(inputs)), options.asyncOp},
               [&](c10d::Backend& part) { return part.gather(outputs, inputs, options); });
}

DeviceBackend::WorkPtr DeviceBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                              const c10d::ScatterOptions& options) {
  return issue({"scatter", outputs, std::max(bytes_in(outputs), bytes_in(inputs)), options.asyncOp},
               [&](c10d::Backend& part) { return part.scatter(outputs, inputs, options); });
}

DeviceBackend::WorkPtr DeviceBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                               const c10d::AllToAllOptions& options) {
  return issue(
      {"all_to_all", inputs.empty() ? outputs : inputs, std::max(bytes_in(outputs), bytes_in(inputs)), options.asyncOp},
      [&](c10d::Backend& part) { return part.alltoall(outputs, inputs, options); });
}

DeviceBackend::WorkPtr DeviceBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                    std::vector<std::int64_t>& output_sizes,
                                                    std::vector<std::int64_t>& input_sizes,
                                                    const c10d::AllToAllOptions& options) {
  return issue(
      {"all_to_all", {input}, std::max(bytes_in({output}), bytes_in({input})), options.asyncOp},
      [&](c10d::Backend& part) { return part.alltoall_base(output, input, output_sizes, input_sizes, options); });
}

DeviceBackend::WorkPtr DeviceBackend::send(Tensors& tensors, int to, int tag) {
  return issue({.name = "send", .tensors = tensors, .bytes = bytes_in(tensors), .is_message = true},
               [&](c10d::Backend& part) { return part.send(tensors, to, tag); });
}

DeviceBackend::WorkPtr DeviceBackend::recv(Tensors& tensors, int from, int tag) {
  return issue({.name = "recv", .tensors = tensors, .bytes = bytes_in(tensors), .is_message = true},
               [&](c10d::Backend& part) { return part.recv(tensors, from, tag); });
}

DeviceBackend::WorkPtr DeviceBackend::recvAnysource(Tensors& tensors, int tag) {
  return issue({.name = "recv", .tensors = tensors, .bytes = bytes_in(tensors), .is_message = true},
               [&](c10d::Backend& part) { return part.recvAnysource(tensors, tag); });
}

// PyTorch names the device: that of the program, or the CPU, if the group has a part for it.
DeviceBackend::WorkPtr DeviceBackend::barrier(const c10d::BarrierOptions& options) {
  const auto bound = options.device_ids.empty() ? options.device : at::Device(at::kCUDA, options.device_ids.front());
  const at::Device device = bound.value_or(host_ || !bound_device_id_ ? at::Device(at::kCPU) : *bound_device_id_);
  return issue_on(device, {"barrier", {}, 0, options.asyncOp},
                  [&](c10d::Backend& part) { return part.barrier(options); });
}

void DeviceBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  (host_ ? *host_ : made_part()).monitoredBarrier(options, wait_all_ranks);
}

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15

void DeviceBackend::setGroupUid(const std::string& uid) {
  c10d::Backend::setGroupUid(uid);
  if (host_) host_->setGroupUid(uid);
  if (const Part part = device_part()) part->setGroupUid(uid);
}

void DeviceBackend::setBoundDeviceId(std::optional<at::Device> device) {
  c10d::Backend::setBoundDeviceId(device);
  if (const Part part = device_part()) part->setBoundDeviceId(device);
}

DeviceBackend::WorkPtr DeviceBackend::gather_single(at::Tensor& output, at::Tensor& input,
                                                    const c10d::GatherOptions& options) {
  return issue({"gather", {input}, bytes_in({input}) * size_, options.asyncOp},
               [&](c10d::Backend& part) { return part.gather_single(output, input, options); });
}

bool DeviceBackend::supportsShrinking() const {
  const Part part = device_part();
  return part && part->supportsShrinking();
}

DeviceBackend::Part DeviceBackend::shrink(const std::vector<std::int64_t>& excluded, int flags,
                                          const OptionsPtr& options) {
  return made_part().shrink(excluded, flags, options);
}

void DeviceBackend::addEphemeralTimeout(const Milliseconds& timeout) {
  if (const Part part = device_part()) part->addEphemeralTimeout(timeout);
}

bool DeviceBackend::supportsWindow() const {
  const Part part = device_part();
  return part && part->supportsWindow();
}

c10::intrusive_ptr<c10d::Window> DeviceBackend::new_window(const std::optional<at::Tensor>& tensor) {
  return made_part().new_window(tensor);
}

bool DeviceBackend::supportsAbortHooks() const {
  const Part part = device_part();
  return part && part->supportsAbortHooks();
}

void DeviceBackend::registerAbortHook(std::int64_t id, c10d::AbortHook hook) {
  made_part().registerAbortHook(id, std::move(hook));
}

void DeviceBackend::unregisterAbortHook(std::int64_t id) {
  if (const Part part = device_part()) part->unregisterAbortHook(id);
}

#endif

}  // namespace dtrain::torch_distributed
