#include "call.h"

#include <algorithm>
#include <map>
#include <optional>

#include "progress.h"

namespace dtrain::torch_distributed {
namespace {

using RedOp = c10d::ReduceOp;

std::optional<comm::DataType> type_of(at::ScalarType type) {
  using comm::DataType;
  switch (type) {
    case at::kByte:
      return DataType::kUint8;
    case at::kChar:
      return DataType::kInt8;
    case at::kShort:
      return DataType::kInt16;
    case at::kInt:
      return DataType::kInt32;
    case at::kLong:
      return DataType::kInt64;
    case at::kHalf:
      return DataType::kFloat16;
    case at::kBFloat16:
      return DataType::kBfloat16;
    case at::kFloat:
      return DataType::kFloat32;
    case at::kDouble:
      return DataType::kFloat64;
    case at::kBool:
      return DataType::kBool;
    default:
      return std::nullopt;
  }
}

// Returns a type that holds all values of `type`, and that communicators reduce.
std::optional<at::ScalarType> wider_type(at::ScalarType type) {
  if (at::isFloat8Type(type)) return at::kFloat;
  if (type == at::kUInt16) return at::kInt;
  if (type == at::kUInt32) return at::kLong;
  return std::nullopt;
}

comm::ReduceOp operator_of(RedOp::RedOpType op, const char* title) {
  switch (op) {
    case RedOp::SUM:
    case RedOp::PREMUL_SUM:
      return comm::ReduceOp::kSum;
    case RedOp::AVG:
      return comm::ReduceOp::kMean;
    case RedOp::PRODUCT:
      return comm::ReduceOp::kProduct;
    case RedOp::MIN:
      return comm::ReduceOp::kMin;
    case RedOp::MAX:
      return comm::ReduceOp::kMax;
    case RedOp::BAND:
      return comm::ReduceOp::kBitAnd;
    case RedOp::BOR:
      return comm::ReduceOp::kBitOr;
    case RedOp::BXOR:
      return comm::ReduceOp::kBitXor;
    case RedOp::UNUSED:
      break;
  }
  TORCH_CHECK(false, title, ": there is no such reduction");
}

const char* word_of(RedOp::RedOpType op) {
  constexpr const char* kWords[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"};
  return op < std::size(kWords) ? kWords[op] : "this reduction";
}

void check_defined(const at::Tensor& tensor, RedOp::RedOpType op, const char* title) {
  const at::ScalarType type = tensor.scalar_type();
  const bool bitwise = op == RedOp::BAND || op == RedOp::BOR || op == RedOp::BXOR;
  const bool scales = op == RedOp::AVG || op == RedOp::PREMUL_SUM;
  const bool defined = tensor.is_complex() ? op == RedOp::SUM || scales
                       : bitwise           ? at::isIntegralType(type, true)
                                           : !scales || at::isFloatingType(type);
  TORCH_CHECK(defined, title, ": ", word_of(op), " is not defined for ", type);
}

double factor_of(const RedOp& op) {
  const auto& supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement&>(*op.supplement_);
  return supplement.tensor_factor.defined() ? supplement.tensor_factor.item<double>() : supplement.double_factor;
}

WorkPtr make_work(const std::shared_ptr<Group>& group, const std::shared_ptr<Lane>& lane, Call& call,
                  std::vector<int> members) {
  for (const Tensors* tensors : {&call.inputs, &call.outputs}) {
    for (const at::Tensor& tensor : *tensors) {
      TORCH_CHECK(tensor.device().is_cpu(), call.title, ": the tensor is on ", tensor.device(),
                  "; this backend is for tensors on the CPU: init_process_group(\"cpu:dtrain,cuda:nccl\")");
      TORCH_CHECK(tensor.layout() == at::kStrided || call.type == c10d::OpType::_ALLREDUCE_SPARSE, call.title,
                  ": the tensor's layout is ", tensor.layout());
    }
  }
  return c10::make_intrusive<GroupWork>(GroupWork::Setup{.lane = lane,
                                                         .rank = group->rank(),
                                                         .type = call.type,
                                                         .title = call.title,
                                                         .inputs = std::move(call.inputs),
                                                         .outputs = std::move(call.outputs),
                                                         .timeout = call.timeout,
                                                         .members = std::move(members)});
}

void start(Lane& lane, bool is_async) {
  if (!is_async) return;
  Progress::instance().advance(lane);
  if (lane.busy()) Progress::instance().wake();
}

}  // namespace

WorkPtr run(const std::shared_ptr<Group>& group, Call call,
            const std::function<void(GroupWork::Parts&, comm::Communicator&)>& issue) {
  const bool is_async = call.is_async;
  const WorkPtr work = make_work(group, group, call, {});
  group->submit(work, [&] {
    work->set_sequence(group->next_sequence());
    issue(work->parts(), group->communicator());
  });
  start(*group, is_async);
  return work;
}

WorkPtr deliver(const std::shared_ptr<Group>& group, Call call,
                const std::function<void(GroupWork::Parts&, comm::Mailbox&)>& issue) {
  const bool is_async = call.is_async;
  const std::shared_ptr<MailLane>& mail = group->mail();
  const WorkPtr work = make_work(group, mail, call, group->members());
  if (!c10d::isP2POp(work->retrieveOpType())) work->set_sequence(group->next_sequence());
  if (const std::exception_ptr error = group->error()) std::rethrow_exception(error);
  mail->submit(work, [&] { issue(work->parts(), mail->mailbox()); });
  start(*mail, is_async);
  return work;
}

Elements elements_of(const at::Tensor& tensor) {
  const auto count = static_cast<std::size_t>(tensor.numel());
  if (tensor.is_complex()) {
    if (const auto type = type_of(c10::toRealValueType(tensor.scalar_type()))) return {*type, 2 * count};
  }
  if (const auto type = type_of(tensor.scalar_type())) return {*type, count};
  return {comm::DataType::kUint8, tensor.nbytes()};
}

Reduction reduction_of(const at::Tensor& tensor, const c10d::ReduceOp& op, const char* title) {
  check_defined(tensor, op.op_, title);
  Reduction reduction{.data = tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor.resolve_neg()};
  const at::ScalarType type = reduction.data.scalar_type();
  if (const auto wider = wider_type(type)) reduction.data = reduction.data.to(*wider);
  const auto known = type_of(reduction.data.scalar_type());
  TORCH_CHECK(known, title, ": reductions of ", type, " are not supported");
  reduction.data = reduction.data.contiguous();
  reduction.type = *known;
  reduction.options.op = operator_of(op.op_, title);
  if (op.op_ == RedOp::PREMUL_SUM) reduction.options.pre_scale = factor_of(op);
  return reduction;
}

at::Tensor result_for(const at::Tensor& target, const at::Tensor& like, const Group& group, GroupWork::Parts& parts) {
  const at::Tensor numbers = target.is_complex() ? at::view_as_real(target) : target;
  if (numbers.is_contiguous() && numbers.scalar_type() == like.scalar_type()) return numbers;
  const at::Tensor result = like.numel() == numbers.numel() ? like : group.allocate({numbers.numel()}, like.options());
  parts.copies.emplace_back(numbers, result);
  return result;
}

at::Tensor sendable(const at::Tensor& tensor, GroupWork::Parts& parts) {
  parts.kept.push_back(tensor.resolve_conj().resolve_neg().contiguous());
  return parts.kept.back();
}

at::Tensor receivable(const at::Tensor& tensor, GroupWork::Parts& parts) {
  if (tensor.is_contiguous()) return tensor;
  const at::Tensor memory = at::empty(tensor.sizes(), tensor.options());
  parts.copies.emplace_back(tensor, memory);
  return memory;
}

bool have_equal_sizes(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& one) { return one.numel() == tensors.front().numel(); });
}

bool follow_each_other(const Tensors& tensors) {
  auto* next = static_cast<std::byte*>(tensors.front().data_ptr());
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_contiguous() || tensor.data_ptr() != next) return false;
    next += tensor.nbytes();
  }
  return true;
}

}  // namespace dtrain::torch_distributed
