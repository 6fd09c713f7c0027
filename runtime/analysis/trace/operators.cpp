// Finds the class of an operator by its name. Names come in several spellings ("aten::log_softmax",
// "LogSoftmaxBackward0", a kernel's mangled name), so they are compared in lower case and without underscores.
#include "dtrain/analysis/operators.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <unordered_map>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "read/json_fields.h"
#include "trace/trace_reader.h"

namespace dtrain::analysis {
namespace {

// Names of operators, divided by spaces; a '*' at the end stands for any rest.
constexpr std::string_view kContractions =
    "mm addmm* bmm baddbmm addbmm matmul* linear* conv* mv addmv dot vdot inner einsum tensordot ger addr bilinear* "
    "slowconv* thnnconv* mkldnnconv* mkldnnlinear* cudnnconv* mkldnnrnn* lstm* gru* rnn* scaleddotproduct* "
    "flashattention* efficientattention* intmm scaledmm nativemultiheadattention* transformbiasrescaleqkv";
constexpr std::string_view kNormalisations =
    "softmax* logsoftmax* layernorm* nativelayernorm* batchnorm* nativebatchnorm* mkldnnbatchnorm* cudnnbatchnorm* "
    "groupnorm* nativegroupnorm* instancenorm* rmsnorm* fusedrmsnorm* localresponsenorm* norm linalgvectornorm* "
    "linalgnorm* normalize foreachnorm sum nansum mean var* std* logsumexp prod amax amin max min argmax argmin any "
    "all cumsum nllloss* crossentropyloss* mseloss* l1loss* smoothl1loss* huberloss* binarycrossentropy* kldiv* "
    "countnonzero";
constexpr std::string_view kElementWise =
    "add sub rsub mul div truedivide neg abs exp expm1 log log1p log2 sqrt rsqrt pow square reciprocal clamp* relu "
    "relu6 leakyrelu* elu* celu* selu* gelu* silu* mish* sigmoid* logsigmoid* tanh* sin cos softplus* hardtanh* "
    "hardswish* hardsigmoid* threshold* dropout* nativedropout* alphadropout* bernoulli where lerp addcmul addcdiv "
    "maximum minimum eq ne lt le gt ge logicaland logicalor logicalnot bitwise* sign floor ceil round erf prelu* "
    "glu* fusedadam* fusedsgd* fusedadagrad* foreachadd* foreachmul* foreachdiv* foreachsqrt* foreachaddcmul* "
    "foreachaddcdiv* foreachlerp* amp*";
// Parts of the names of GPU kernels, tried in this order.
constexpr std::string_view kNormalisationKernels = "softmax norm reduce bnfw bnbw nllloss";
constexpr std::string_view kElementWiseKernels = "elementwise vectorized multitensorapply dropout relu";

std::string plain(std::string_view name) {
  for (const std::string_view prefix : {"aten::", "torch::autograd::", "mkldnn::", "prims::"}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  std::string text;
  for (const char c : name) {
    if (c != '_') text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  // The backward of an operator has the class of the operator: "addmmbackward0", "log_softmax_backward_data".
  const auto backward = text.find("backward");
  if (backward != std::string::npos && backward > 0) text.resize(backward);
  return text;
}

bool among(std::string_view names, std::string_view text) {
  const std::vector<std::string> all = split(names, ' ');
  return std::any_of(all.begin(), all.end(), [&](std::string_view name) {
    return name.ends_with('*') ? text.starts_with(name.substr(0, name.size() - 1)) : text == name;
  });
}

bool mentioned(std::string_view words, std::string_view text) {
  const std::vector<std::string> all = split(words, ' ');
  return std::ranges::any_of(all, [&](const std::string& word) { return text.find(word) != std::string_view::npos; });
}

struct Span {
  double start_us, end_us;
  std::size_t name;  // kCommunication, or an index into names
};
constexpr std::size_t kCommunication = static_cast<std::size_t>(-1);

struct OperatorTotals {
  std::int64_t calls = 0;
  double self_us = 0, total_us = 0;
};

class Device {
 public:
  std::size_t index_of(std::string_view name) {
    const auto [found, added] = indices_.try_emplace(std::string(name), totals_.size());
    if (added) totals_.emplace_back();
    return found->second;
  }
  OperatorTotals& at(std::size_t index) { return totals_[index]; }
  DeviceOperators result() const {
    DeviceOperators device;
    for (const auto& [name, index] : indices_) {
      const OperatorTotals& totals = totals_[index];
      device.rows.push_back(
          {name, kind_of_operator(name), totals.calls, totals.self_us / 1e6, totals.total_us / 1e6, 0});
      device.seconds += totals.self_us / 1e6;
    }
    std::sort(device.rows.begin(), device.rows.end(), [](const OperatorRow& a, const OperatorRow& b) {
      return a.self_s != b.self_s ? a.self_s > b.self_s : a.name < b.name;
    });
    for (const OperatorKind kind : kOperatorKinds) {
      OperatorKindRow row{kind};
      for (OperatorRow& op : device.rows) {
        op.share = device.seconds > 0 ? op.self_s / device.seconds : 0;
        if (op.kind != kind) continue;
        row.calls += op.calls;
        row.seconds += op.self_s;
      }
      row.share = device.seconds > 0 ? row.seconds / device.seconds : 0;
      device.kinds.push_back(row);
    }
    return device;
  }

 private:
  std::unordered_map<std::string, std::size_t> indices_;
  std::vector<OperatorTotals> totals_;
};

// Charges each span of a thread with its time without the spans inside it.
void charge(std::vector<Span>& spans, Device& device) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return a.start_us != b.start_us ? a.start_us < b.start_us : a.end_us > b.end_us;
  });
  struct Open {
    Span span;
    double self_us;
  };
  std::vector<Open> stack;
  const auto close = [&] {
    const Open done = stack.back();
    stack.pop_back();
    if (done.span.name == kCommunication) return;
    OperatorTotals& totals = device.at(done.span.name);
    ++totals.calls;
    totals.self_us += std::max(0.0, done.self_us);
    totals.total_us += done.span.end_us - done.span.start_us;
  };
  for (Span span : spans) {
    while (!stack.empty() && stack.back().span.end_us <= span.start_us) close();
    if (!stack.empty()) {
      span.end_us = std::min(span.end_us, stack.back().span.end_us);  // clocks differ by a microsecond
      stack.back().self_us -= span.end_us - span.start_us;
    }
    stack.push_back({span, span.end_us - span.start_us});
  }
  while (!stack.empty()) close();
}

// Returns the number that links a call of the CUDA runtime and the work that it launched; 0: the event has none.
std::int64_t correlation_of(std::string_view args) {
  constexpr std::string_view kKey = "\"correlation\":";
  const auto found = args.find(kKey);
  if (found == std::string_view::npos) return 0;
  args.remove_prefix(found + kKey.size());
  args.remove_prefix(std::min(args.find_first_not_of(' '), args.size()));
  return take_number<std::int64_t>(args).value_or(0);
}

void add_file(const std::filesystem::path& path, Operators& result, Device& cpu, Device& gpu, std::set<int>& ranks) {
  TraceReader reader(path);
  std::map<std::string, std::vector<Span>> threads;
  std::vector<Span> communication;
  std::string training_thread;
  profile::GpuWindowCounter window;
  reader.each([&](const RawEvent& event) {
    if (event.ph != "\"X\"") return;
    const std::string_view category = unquoted(event.category);
    const double start = event.ts_us();
    const double end = start + event.dur_us();
    if (category == "cpu_op") {
      threads[std::string(event.tid)].push_back({start, end, cpu.index_of(unquoted(event.name))});
    } else if (category == "kernel" || category == "gpu_memcpy" || category == "gpu_memset") {
      OperatorTotals& totals = gpu.at(gpu.index_of(unquoted(event.name)));
      ++totals.calls;
      totals.self_us += end - start;
      totals.total_us += end - start;
      window.add_work(unquoted(event.name), start, end, correlation_of(event.args));
    } else if (category == "cuda_runtime" || category == "cuda_driver") {
      window.add_call(unquoted(event.name), end, correlation_of(event.args));
    } else if (category == "phase" && unquoted(event.name) == "allreduce_wait") {
      communication.push_back({start, end, kCommunication});
    } else if (category == "user_annotation" && unquoted(event.name).starts_with("ProfilerStep#")) {
      training_thread = event.tid;
    }
  });
  if (!training_thread.empty()) {
    auto& spans = threads[training_thread];
    spans.insert(spans.end(), communication.begin(), communication.end());
  }
  for (auto& [thread, spans] : threads) charge(spans, cpu);
  const TraceHead& head = reader.head();
  ranks.insert(head.rank);
  const std::int64_t batches = std::max<std::int64_t>(0, head.batches());
  add_to(result.batches, batches);
  window.count(batches, result.gpu_window);
  if (!head.cut.empty()) {
    result.notes.push_back(path.filename().string() + " ends after batch " + std::to_string(head.last_batch) + ": " +
                           head.cut);
  }
  if (!head.missing.empty()) result.notes.push_back(path.filename().string() + " lacks " + head.missing);
}

Json device_json(const DeviceOperators& device) {
  Json rows = Json::array();
  for (const OperatorRow& row : device.rows) {
    rows.push_back({{"name", row.name},
                    {"class", name_of(row.kind)},
                    {"calls", row.calls},
                    {"self_s", row.self_s},
                    {"total_s", row.total_s},
                    {"share", row.share}});
  }
  Json kinds = Json::array();
  for (const OperatorKindRow& row : device.kinds) {
    kinds.push_back(
        {{"class", name_of(row.kind)}, {"calls", row.calls}, {"seconds", row.seconds}, {"share", row.share}});
  }
  return {{"seconds", device.seconds}, {"operators", rows}, {"classes", kinds}};
}

}  // namespace

std::string_view name_of(OperatorKind kind) {
  constexpr std::string_view kNames[] = {"contraction", "normalisation", "element-wise", "other"};
  return kNames[static_cast<std::size_t>(kind)];
}

OperatorKind kind_of_operator(std::string_view name) {
  if (name.starts_with("Memcpy") || name.starts_with("Memset") || name.starts_with("autograd::engine")) {
    return OperatorKind::kOther;
  }
  const std::string text = plain(name);
  if (among(kContractions, text)) return OperatorKind::kContraction;
  if (among(kNormalisations, text)) return OperatorKind::kNormalisation;
  if (among(kElementWise, text)) return OperatorKind::kElementWise;
  if (name.starts_with("aten::") || name.starts_with("torch::") || name.find("Backward") != std::string_view::npos) {
    return OperatorKind::kOther;
  }
  if (profile::is_product_kernel(text)) return OperatorKind::kContraction;
  if (mentioned(kNormalisationKernels, text)) return OperatorKind::kNormalisation;
  if (mentioned(kElementWiseKernels, text)) return OperatorKind::kElementWise;
  return OperatorKind::kOther;
}

Operators operators_of_files(const std::vector<std::filesystem::path>& files) {
  Operators result;
  Device cpu, gpu;
  std::set<int> ranks;
  for (const auto& path : files) {
    try {
      add_file(path, result, cpu, gpu, ranks);
    } catch (const Error& error) {
      result.notes.emplace_back(error.what());
    }
  }
  result.cpu = cpu.result();
  result.gpu = gpu.result();
  result.ranks.assign(ranks.begin(), ranks.end());
  return result;
}

Operators operators_of_run(const std::filesystem::path& run_folder) {
  return operators_of_files(trace_files(run_folder));
}

Json to_json(const Operators& operators) {
  return {{"cpu", device_json(operators.cpu)},
          {"gpu", device_json(operators.gpu)},
          {"gpu_window", operators.gpu_window.batches > 0 ? profile::to_json(operators.gpu_window) : Json()},
          {"ranks", operators.ranks},
          {"traced_batches", operators.batches},
          {"notes", operators.notes}};
}

}  // namespace dtrain::analysis
