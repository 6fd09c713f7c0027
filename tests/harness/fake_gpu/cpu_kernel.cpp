// How does a CPU kernel compute on device memory?
//
// Its tensors are replaced by tensors of the host on the same memory; what it returns in new memory is copied to the
// device.
#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "generator.h"
#include "kernels.h"
#include "launch.h"
#include "machine.h"

namespace dtrain::test::fake_gpu {

namespace {

using torch::jit::Stack;

bool takes_generator(const c10::Argument& argument) {
  return argument.type()->isSubtypeOf(*c10::OptionalType::create(c10::GeneratorType::get()));
}

void compute(const c10::OperatorHandle& op, c10::DeviceIndex device, Stack& stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto& arguments = op.schema().arguments();
  std::optional<AsDefaultGenerator> random;
  if (op.hasTag(at::Tag::nondeterministic_seeded) &&
      std::none_of(arguments.begin(), arguments.end(), takes_generator)) {
    random.emplace(device);
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
}

// Results in the order of the schema; those of a list one by one.
std::vector<at::Tensor> tensors_of(const Stack& results) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : results) {
    if (value.isTensor()) tensors.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(tensor);
    }
  }
  return tensors;
}

class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack& stack);
  void run();

 private:
  void find_device();
  bool indexes() const { return what_ == "index" || what_ == "index_put_" || what_ == "_index_put_impl_"; }
  bool size_depends_on_data() const;
  // The argument for the CPU kernel.
  c10::IValue replace(const c10::Argument& argument, const c10::IValue& value);
  at::Tensor replace(const at::Tensor& tensor, bool writes, bool in_list, bool may_resize);
  // The result for the caller.
  c10::IValue give_back(const c10::Argument& result, const c10::IValue& value);
  at::Tensor give_back(const at::Tensor& tensor);
  void give_back_resized();
  Node replay() const;

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  Stack& stack_;
  const std::string_view what_;
  Stack originals_, arguments_;
  c10::DeviceIndex device_ = -1;
  std::optional<Launch> launch_;
  bool index_on_host_ = false;
  bool index_is_mask_ = false;
  struct Used {
    at::Tensor device, host;
  };
  std::vector<Used> used_, resized_;
  std::size_t seen_results_ = 0;
  struct Made {
    std::size_t result;
    at::Tensor host;  // on the device's memory
  };
  std::vector<Made> made_;
};

Call::Call(const c10::OperatorHandle& op, Stack& stack)
    : op_(op),
      schema_(op.schema()),
      stack_(stack),
      what_(std::string_view(schema_.name()).substr(schema_.name().find("::") + 2)) {
  originals_.assign(stack.end() - static_cast<std::ptrdiff_t>(schema_.arguments().size()), stack.end());
  torch::jit::drop(stack, schema_.arguments().size());
  find_device();
}

void Call::find_device() {
  const auto found = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return;
    TORCH_CHECK(device_ < 0 || tensor.get_device() == device_,
                "Expected all tensors to be on the same device, but found at least two devices, cuda:",
                static_cast<int>(device_), " and ", tensor.device(), "! (in aten::", what_, ")");
    device_ = tensor.get_device();
  };
  for (const c10::IValue& value : originals_) {
    if (value.isTensor()) found(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) found(tensor);
    }
    if (value.isOptionalTensorList()) {
      for (const auto& tensor : value.toOptionalTensorVector()) found(tensor.value_or(at::Tensor()));
    }
    if (device_ < 0 && value.isDevice() && value.toDevice().is_cuda()) {
      device_ = value.toDevice().has_index() ? value.toDevice().index() : current_device();
    }
  }
}

at::Tensor Call::replace(const at::Tensor& tensor, bool writes, bool in_list, bool may_resize) {
  if (!tensor.defined()) return tensor;
  index_is_mask_ |= indexes() && in_list && (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte);
  if (!tensor.is_cuda()) {
    index_on_host_ |= indexes() && in_list;
    TORCH_CHECK((tensor.dim() == 0 && !in_list && !writes) || (indexes() && in_list),
                "Expected all tensors to be on the same device, but found at least two devices, cuda:",
                static_cast<int>(device_), " and cpu! (in aten::", what_, ")");
    return tensor;
  }
  if (writes) launch_->writes(tensor);
  if (!writes) launch_->reads(tensor);
  if (may_resize && tensor.numel() == 0) {
    resized_.push_back({tensor, at::empty({0}, tensor.options().device(at::kCPU))});
    return resized_.back().host;
  }
  used_.push_back({tensor, on_host(tensor)});
  return used_.back().host;
}

c10::IValue Call::replace(const c10::Argument& argument, const c10::IValue& value) {
  // Batch normalization's statistics are written though its schema does not say so.
  const bool writes = (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) ||
                      argument.name() == "running_mean" || argument.name() == "running_var";
  if (value.isTensor()) return replace(value.toTensor(), writes, false, writes && argument.kwarg_only());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(replace(tensor, writes, true, false));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor ? std::optional(replace(*tensor, writes, true, false)) : std::nullopt);
    }
    return list;
  }
  if (value.isDevice() && value.toDevice().is_cuda()) return c10::Device(c10::kCPU);
  if (value.isGenerator()) {
    TORCH_CHECK(value.toGenerator().device().is_cuda(), "Expected a 'cuda' device type for generator but found 'cpu'");
    return for_cpu_kernel(value.toGenerator());
  }
  if (value.isNone() && takes_generator(argument)) return for_cpu_kernel(default_generator(device_));
  return value;
}

bool Call::size_depends_on_data() const {
  if (indexes()) return index_on_host_ || index_is_mask_;
  return op_.hasTag(at::Tag::data_dependent_output) || op_.hasTag(at::Tag::dynamic_output_shape);
}

at::Tensor Call::give_back(const at::Tensor& tensor) {
  const std::size_t result = seen_results_++;
  if (!tensor.defined()) return tensor;
  if (tensor.numel() > 0) {  // perhaps a view of an argument
    const Range view = extent_of(tensor);
    for (const auto& [device, host] : used_) {
      const Range whole = extent_of(host);
      if (view.begin < whole.begin || view.begin >= whole.end) continue;
      if (device.sizes() == tensor.sizes() && device.strides() == tensor.strides() && view.begin == whole.begin)
        return device;
      const auto offset = static_cast<std::int64_t>((view.begin - whole.begin) / device.element_size());
      return device.as_strided(tensor.sizes(), tensor.strides(), device.storage_offset() + offset);
    }
  }
  at::Tensor made = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCUDA, device_));
  const at::Tensor host = on_host(made);
  host.copy_(tensor);
  launch_->made(made);
  made_.push_back({result, host});
  return made;
}

c10::IValue Call::give_back(const c10::Argument& result, const c10::IValue& value) {
  if (result.alias_info() != nullptr && result.alias_info()->isWrite()) {  // an argument that was written
    seen_results_ += value.isTensorList() ? value.toTensorVector().size() : 1;
    const auto& arguments = schema_.arguments();
    const auto argument = std::find_if(arguments.begin(), arguments.end(), [&](const c10::Argument& candidate) {
      return candidate.alias_info() != nullptr && *candidate.alias_info() == *result.alias_info();
    });
    return originals_.at(argument - arguments.begin());
  }
  if (value.isTensor()) return give_back(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(give_back(tensor));
  return list;
}

void Call::give_back_resized() {
  for (auto& [device, host] : resized_) {
    if (host.numel() == 0 && host.sizes() == device.sizes()) continue;
    device.resize_(host.sizes());
    if (host.strides() != device.strides()) device.as_strided_(host.sizes(), host.strides());
    on_host(device).copy_(host);
    launch_->made(device);
  }
}

Node Call::replay() const {
  Stack frozen;  // what lies on the host is read now and never again
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const bool of_host =
        originals_[i].isTensor() && originals_[i].toTensor().defined() && !originals_[i].toTensor().is_cuda();
    if (!of_host) {
      frozen.push_back(arguments_[i]);
      continue;
    }
    const at::Tensor& original = originals_[i].toTensor();
    at::Tensor value = original.clone();
    // A number that was written as such does not decide the type of the result.
    value.unsafeGetTensorImpl()->set_wrapped_number(original.unsafeGetTensorImpl()->is_wrapped_number());
    frozen.emplace_back(std::move(value));
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> resized;
  for (const auto& [device, host] : resized_) resized.emplace_back(on_host(device), host);
  return [op = op_, device = device_, frozen, made = made_, resized](const Access&) {
    Stack stack = frozen;
    compute(op, device, stack);
    const std::vector<at::Tensor> results = tensors_of(stack);
    for (const auto& [result, host] : made) host.copy_(results.at(result));
    for (const auto& [host, result] : resized) host.copy_(result);
  };
}

void Call::run() {
  if (device_ < 0) {  // nothing of it is on a device
    stack_.insert(stack_.end(), originals_.begin(), originals_.end());
    return compute(op_, 0, stack_);
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  launch_.emplace(device_, what_);
  for (std::size_t i = 0; i < originals_.size(); ++i) {
    arguments_.push_back(replace(schema_.arguments()[i], originals_[i]));
  }
  const bool waits = size_depends_on_data();
  if (waits) launch_->needs_host();
  launch_->begin(&FakeGpuCounts::kernels);
  Stack stack = arguments_;
  compute(op_, device_, stack);
  const auto before = std::exchange(allocating, what_);
  for (std::size_t i = 0; i < stack.size(); ++i) stack_.push_back(give_back(schema_.returns()[i], stack[i]));
  give_back_resized();
  allocating = before;
  if (launch_->captured()) launch_->record(replay());
  if (!waits) return;
  const std::scoped_lock lock(machine().mutex);
  if (index_on_host_) machine().report.count(&FakeGpuCounts::pageable_copies);
  machine().streams.wait(launch_->stream(), what_);
}

}  // namespace

void run_cpu_kernel(const c10::OperatorHandle& op, Stack* stack) {
  Call(op, *stack).run();
}

at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  return at::from_blob(machine().memory.alias(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       at::TensorOptions().dtype(tensor.dtype()));
}

}  // namespace dtrain::test::fake_gpu
