#include "tracing/flop_counts.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "dtrain/base/file.h"
#include "dtrain/host/network.h"
#include "model/model_report.h"
#include "tracing/flop_formulas.h"

namespace dtrain::train {

class OperatorCounter::Table : public c10::DebugInfoBase {
 public:
  explicit Table(bool timed) : timed_(timed) {}
  void add(profile::OperatorCount call, double seconds);
  std::vector<profile::OperatorCount> take();

 private:
  using Key = std::tuple<std::string, std::string, std::string, std::vector<std::vector<std::int64_t>>>;
  struct Row {
    profile::OperatorCount count;
    std::int64_t largest = 0;  // bytes of the largest call
  };
  const bool timed_;
  std::mutex mutex_;  // autograd's threads also add
  std::map<Key, Row> rows_;
};

namespace {

constexpr std::int64_t kCounted[] = {2, 3, 5, 9, 17, 33};  // batches, from 1

// Facts about an operator from its name and its schema.
struct OperatorFacts {
  bool counts = false;
  std::string name;
  const FlopFormula* formula = nullptr;  // null: it has no FLOPs
  bool gathers = false;                  // reads as many bytes of its first tensor as it writes
  bool writes = false;                   // writes an argument: its outputs may be its inputs
  std::vector<bool> not_read;            // by argument: true if only written
};

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool allocates(std::string_view name) {
  return name.starts_with("aten::empty") || name.starts_with("aten::new_empty") || name.starts_with("aten::resize");
}

// True for in-place operators that only write.
bool overwrites(std::string_view name) {
  return is_one_of(name, {"aten::copy_", "aten::fill_", "aten::zero_", "aten::normal_", "aten::uniform_",
                          "aten::random_", "aten::bernoulli_", "aten::exponential_"});
}

OperatorFacts facts_from(const c10::OperatorName& name) {
  OperatorFacts facts;
  facts.name = name.name;
  const auto found = c10::Dispatcher::singleton().findSchema(name);
  if (!found || allocates(name.name)) return facts;
  if (found->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return facts;
  const c10::FunctionSchema& schema = found->schema();
  bool views = false;
  for (const c10::Argument& output : schema.returns()) {
    views = views || (output.alias_info() && !output.alias_info()->isWrite());
  }
  if (views) return facts;
  facts.counts = true;
  facts.formula = flop_formula(name.name);
  facts.gathers =
      is_one_of(name.name, {"aten::embedding", "aten::index", "aten::index_select", "aten::gather", "aten::take"});
  for (const c10::Argument& argument : schema.arguments()) {
    const bool written = argument.alias_info() && argument.alias_info()->isWrite();
    facts.writes = facts.writes || written;
    facts.not_read.push_back(written && (argument.kwarg_only() || overwrites(name.name)));
  }
  return facts;
}

// Results are kept for the life of the process, because operators are few.
const OperatorFacts& facts_of(const c10::OperatorName& name) {
  thread_local std::unordered_map<c10::OperatorName, OperatorFacts> known;
  const auto found = known.find(name);
  return found != known.end() ? found->second : known.emplace(name, facts_from(name)).first->second;
}

template <typename Call>
void each_tensor(const c10::IValue& value, const Call& call) {
  if (value.isTensor()) {
    if (const at::Tensor& tensor = value.toTensor(); tensor.defined()) call(tensor);
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined()) call(tensor);
    }
  } else if (value.isList()) {  // optional tensors
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isTensor()) each_tensor(item, call);
    }
  }
}

// Returns the bytes in memory: an expanded dimension counts once.
std::int64_t bytes_of(const at::Tensor& tensor) {
  if (tensor.is_nested()) return 0;
  const auto each = static_cast<std::int64_t>(tensor.element_size());
  if (tensor.layout() != at::kStrided) return tensor.numel() * each;
  std::int64_t elements = 1;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.stride(i) != 0 || tensor.size(i) == 0) elements *= tensor.size(i);
  }
  return elements * each;
}

const void* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

bool is_channels_last(const at::Tensor& tensor) {
  const auto is = [&](at::MemoryFormat format) { return tensor.is_contiguous(format) && !tensor.is_contiguous(); };
  return (tensor.dim() == 4 && is(at::MemoryFormat::ChannelsLast)) ||
         (tensor.dim() == 5 && is(at::MemoryFormat::ChannelsLast3d));
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A call that counts.
struct Call : at::ObserverContext {
  const OperatorFacts* facts = nullptr;
  OperatorCounter::Table* table = nullptr;
  profile::OperatorCount count;
  std::int64_t first_bytes = 0;       // bytes of the first tensor
  std::vector<const void*> storages;  // of the inputs
  std::int64_t start_ns = 0;
};

thread_local Call* open_call = nullptr;  // the call to which the thread's operators belong

void look_at_inputs(Call& call, c10::ArrayRef<const c10::IValue> inputs) {
  const OperatorFacts& facts = *call.facts;
  profile::OperatorCount& count = call.count;
  bool first = true;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool read = i >= facts.not_read.size() || !facts.not_read[i];
    each_tensor(inputs[i], [&](const at::Tensor& tensor) {
      call.storages.push_back(storage_of(tensor));
      if (count.dtype.empty() && tensor.is_floating_point()) count.dtype = dtype_name(tensor.scalar_type());
      if (!tensor.is_nested()) count.shapes.push_back(tensor.sizes().vec());
      const std::int64_t bytes = read ? bytes_of(tensor) : 0;
      if (std::exchange(first, false)) call.first_bytes = bytes;
      count.bytes += bytes;
    });
  }
  if (!facts.formula) return;
  count.flops = facts.formula->flops(inputs);
  if (!facts.formula->is_convolution) return;
  bool channels_last = false;
  for (const c10::IValue& input : inputs) {
    each_tensor(input, [&](const at::Tensor& tensor) { channels_last = channels_last || is_channels_last(tensor); });
  }
  count.format = channels_last ? "channels_last" : "contiguous";
}

void look_at_outputs(Call& call, const std::vector<c10::IValue>& outputs) {
  std::int64_t written = 0;
  bool moved_nothing = true;  // true if each output is an unwritten input
  for (const c10::IValue& output : outputs) {
    each_tensor(output, [&](const at::Tensor& tensor) {
      if (call.count.dtype.empty()) call.count.dtype = dtype_name(tensor.scalar_type());
      const auto& inputs = call.storages;
      const bool own = std::find(inputs.begin(), inputs.end(), storage_of(tensor)) == inputs.end();
      if (!own && !call.facts->writes) return;
      moved_nothing = false;
      written += bytes_of(tensor);
    });
  }
  if (moved_nothing) {
    call.count.bytes = 0;
    return;
  }
  call.count.bytes += written;
  if (call.facts->gathers) call.count.bytes += written - call.first_bytes;
}

std::unique_ptr<at::ObserverContext> begin_operator(const at::RecordFunction& function) {
  auto* const table =
      static_cast<OperatorCounter::Table*>(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PRODUCER_INFO));
  const auto name = table ? function.operator_name() : std::nullopt;
  if (!name) return nullptr;
  const OperatorFacts& facts = facts_of(*name);
  if (open_call) {
    // Autocast calls an operator again with cast arguments, which have the type of the arithmetic.
    const FlopFormula* const formula = facts.formula;
    if (formula && open_call->facts->formula && formula->first_factor < function.inputs().size()) {
      const c10::IValue& factor = function.inputs()[formula->first_factor];
      if (factor.isTensor()) open_call->count.dtype = dtype_name(factor.toTensor().scalar_type());
    }
    return nullptr;
  }
  if (!facts.counts) return nullptr;
  auto call = std::make_unique<Call>();
  call->facts = &facts;
  call->table = table;
  call->count.name = facts.name;
  call->count.calls = 1;
  look_at_inputs(*call, function.inputs());
  open_call = call.get();
  call->start_ns = now_ns();
  return call;
}

void end_operator(const at::RecordFunction& function, at::ObserverContext* context) {
  if (!context) return;
  const std::int64_t end_ns = now_ns();
  auto& call = static_cast<Call&>(*context);
  open_call = nullptr;
  look_at_outputs(call, function.outputs());
  call.table->add(std::move(call.count), static_cast<double>(end_ns - call.start_ns) / 1e9);
}

}  // namespace

void OperatorCounter::Table::add(profile::OperatorCount call, double seconds) {
  const std::lock_guard lock(mutex_);
  Key key{call.name, call.dtype, call.format, {}};
  if (call.flops > 0) std::get<3>(key) = call.shapes;
  Row& row = rows_[std::move(key)];
  profile::OperatorCount& all = row.count;
  if (all.calls == 0) {
    row.largest = call.bytes;
    all = std::move(call);
    if (timed_) all.seconds = seconds;
    return;
  }
  all.calls += call.calls;
  all.flops += call.flops;
  all.bytes += call.bytes;
  if (timed_) *all.seconds += seconds;
  if (call.bytes <= row.largest) return;
  row.largest = call.bytes;
  all.shapes = std::move(call.shapes);
}

std::vector<profile::OperatorCount> OperatorCounter::Table::take() {
  const std::lock_guard lock(mutex_);
  std::vector<profile::OperatorCount> all;
  for (auto& [key, row] : std::exchange(rows_, {})) all.push_back(std::move(row.count));
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::pair(a.seconds.value_or(0), a.flops) > std::pair(b.seconds.value_or(0), b.flops);
  });
  return all;
}

OperatorCounter::OperatorCounter(bool timed) : table_(std::make_shared<Table>(timed)) {}

std::vector<profile::OperatorCount> OperatorCounter::take() {
  return table_->take();
}

OperatorCounter::Scope::Scope(const OperatorCounter& counter)
    : counter_(c10::DebugInfoKind::PRODUCER_INFO, counter.table_),
      callback_(at::addThreadLocalCallback(at::RecordFunctionCallback(&begin_operator, &end_operator)
                                               .needsInputs(true)
                                               .needsOutputs(true)
                                               .scopes({at::RecordScope::FUNCTION}))) {}

OperatorCounter::Scope::~Scope() {
  at::removeCallback(callback_);
}

CountedBatches::CountedBatches(rank::RankSession& session, bool on_gpu) : session_(session), counter_(!on_gpu) {
  counts_.rank = session.world().rank;
  counts_.host = host::host_identity().name;
  counts_.device = on_gpu ? "cuda" : "cpu";
  counts_.threads = at::get_num_threads();
}

std::optional<OperatorCounter::Scope> CountedBatches::begin() {
  ++trained_;
  counting_ = std::find(std::begin(kCounted), std::end(kCounted), trained_) != std::end(kCounted);
  if (!counting_) return std::nullopt;
  return std::optional<OperatorCounter::Scope>(std::in_place, counter_);
}

void CountedBatches::cancel() {
  --trained_;
  if (std::exchange(counting_, false)) static_cast<void>(counter_.take());
}

void CountedBatches::end(std::int64_t batch, std::int64_t samples) {
  if (!counting_) return;
  std::vector<profile::OperatorCount> operators = counter_.take();
  if (samples <= 0 || operators.empty()) return;
  std::int64_t flops = 0;
  double seconds = 0;
  std::map<std::string, std::int64_t> by_type;
  for (const profile::OperatorCount& count : operators) {
    flops += count.flops;
    seconds += count.seconds.value_or(0);
    if (count.flops > 0) by_type[count.dtype] += count.flops;
  }
  const auto all_samples = static_cast<double>(samples);
  ++counts_.counted;
  if (const double each = static_cast<double>(flops) / all_samples; each > counts_.flops_per_sample) {
    counts_.flops_per_sample = each;
    counts_.dtype = std::max_element(by_type.begin(), by_type.end(), [](const auto& a, const auto& b) {
                      return a.second < b.second;
                    })->first;
  }
  if (counts_.counted > 1 && seconds / all_samples >= seconds_per_sample_) return;
  seconds_per_sample_ = seconds / all_samples;
  counts_.batch = batch;
  counts_.samples = samples;
  counts_.operators = std::move(operators);
}

void CountedBatches::after_step() {
  if (!counting_) return;
  if (counts_.counted > 0 && !std::exchange(in_plan_, true)) {
    try {
      session_.update_plan(
          "flops", {{"per_sample", counts_.flops_per_sample}, {"dtype", counts_.dtype}, {"device", counts_.device}});
    } catch (const std::exception& error) {
      session_.log()->warn("plan.json does not get the FLOPs of a sample: {}", error.what());
    }
  }
  if (trained_ == *std::rbegin(kCounted)) write_file();
  counting_ = false;
}

void CountedBatches::finish() {
  if (!written_) write_file();
}

void CountedBatches::write_file() {
  written_ = true;
  if (counts_.counted == 0) return;
  const auto path = session_.run_dir() / "profile" / profile::operators_file_name(counts_.rank);
  try {
    write_file_atomic(path, to_line(profile::to_json(counts_)) + "\n");
  } catch (const std::exception& error) {
    session_.log()->warn("the table of operators is not written: {}", error.what());
  }
}

}  // namespace dtrain::train
