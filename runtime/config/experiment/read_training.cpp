#include <arpa/inet.h>

#include <array>
#include <cstdint>
#include <limits>

#include "document/scalar.h"
#include "dtrain/base/text.h"
#include "experiment/read_sections.h"

namespace dtrain::config {
namespace {

constexpr std::int64_t kMaxRestarts = 1000;
constexpr std::int64_t kMaxRecords = std::numeric_limits<std::int32_t>::max();
constexpr const char* kWhatIsSaved = "a run saves its weights once, at its end (checkpoints/final); leave the key out";

// {type: const, val: x} as Determined's users write it. Other types describe a search, which dtrain does not do.
const Value* constant_of(const Value& value, Section& hyperparameters, const std::string& key) {
  const Entry* type = value.is_map() ? value.find("type") : nullptr;
  if (!type || !type->value.is_scalar()) return &value;
  const std::string& name = type->value.text;
  const Entry* constant = value.find("val");
  if (name == "const" && constant && value.entries.size() == 2) return &constant->value;
  if (name == "const") {
    hyperparameters.report(value, key, "a constant is {type: const, val: x}, with these two keys alone");
    return nullptr;
  }
  for (const char* search : {"int", "double", "log", "categorical"}) {
    if (name != search) continue;
    hyperparameters.report(
        value, key,
        "dtrain does not search hyperparameters: type " + quote(name) + " must be a value, or {type: const, val: x}");
    return nullptr;
  }
  return &value;
}

void read_batch_size(Section& hyperparameters, const Value& value, const std::string& key, Experiment& experiment) {
  experiment.global_batch_size = hyperparameters.parse_integer(value, key, 0, 1, kMaxRecords);
  const int slots = experiment.resources.slots_per_trial;
  if (experiment.global_batch_size > 0 && experiment.global_batch_size < slots) {
    hyperparameters.report(
        value, key,
        "must be at least resources.slots_per_trial, which is " + std::to_string(slots) + ", not " + describe(value));
  }
}

void read_hyperparameters(Section& root, Experiment& experiment) {
  const std::string batch_size = "global_batch_size";
  const Value* value = root.find("hyperparameters");
  Section hyperparameters = root.section("hyperparameters");
  if (!hyperparameters.find(batch_size)) {
    hyperparameters.report_missing(batch_size, "a whole number of at least resources.slots_per_trial");
  }
  if (!value) return;
  for (const Entry& entry : value->entries) {
    if (experiment.hyperparameters.contains(entry.key)) continue;  // a duplicate: reported already
    const Value* constant = constant_of(entry.value, hyperparameters, entry.key);
    if (!constant) continue;
    if (entry.key == batch_size) {
      read_batch_size(hyperparameters, *constant, batch_size, experiment);
      experiment.hyperparameters[batch_size] = experiment.global_batch_size;
    } else if (experiment.model) {
      const auto near = nearest(entry.key, std::array{batch_size});
      hyperparameters.report(
          entry.value, entry.key,
          "has no effect with model:, " +
              (near ? "did you mean '" + *near + "'?"
                    : std::string("whose settings are under 'optimizer', 'loss' and 'data'; only '") + batch_size +
                          "' is read here"));
    } else {
      const std::string path = hyperparameters.path_of(entry.key);
      experiment.hyperparameters[entry.key] = to_json(*constant, path, root.collector());
    }
  }
}

void read_prometheus(Section section, Prometheus& prometheus) {
  if (!section.find("port")) section.report_missing("port", "the port to listen on, or 0 for any that is free");
  prometheus.port = static_cast<int>(section.integer("port", 0, 0, std::numeric_limits<std::uint16_t>::max()));
  prometheus.address = section.text("address", prometheus.address);
  in_addr parsed{};
  if (inet_pton(AF_INET, prometheus.address.c_str(), &parsed) != 1) {
    section.report(
        *section.find("address"), "address",
        "must be an IPv4 address of the host (127.0.0.1; 0.0.0.0 for all it has), not '" + prometheus.address + "'");
  }
  section.finish();
}

// `end` is that of a range whose key may be missing.
void check_range(Section& section, std::int64_t begin, std::optional<std::int64_t> end) {
  if (!end || *end >= begin) return;
  section.report(*section.find("end_after_batch"), "end_after_batch",
                 "is before begin_on_batch (" + std::to_string(begin) + "): not one batch would be traced");
}

std::optional<BatchRange> read_trace(Section trace) {
  if (!trace.find("begin_on_batch")) trace.report_missing("begin_on_batch", "the first batch that is traced");
  if (!trace.find("end_after_batch")) trace.report_missing("end_after_batch", "the last batch that is traced");
  const BatchRange range{trace.integer("begin_on_batch", 1, 1, kMaxLength),
                         trace.integer("end_after_batch", kMaxLength, 1, kMaxLength)};
  check_range(trace, range.begin_on_batch, range.end_after_batch);
  trace.finish();
  return range;
}

void read_profiling(Section section, Experiment& experiment) {
  Profiling& profiling = experiment.profiling;
  profiling.enabled = section.boolean("enabled", false);
  profiling.begin_on_batch = section.integer("begin_on_batch", 0, 0, kMaxLength);
  profiling.end_after_batch = section.optional_integer("end_after_batch", 1, kMaxLength);
  section.default_only("sync_timings", section.boolean("sync_timings", true), true, "true");
  if (const Value* trace = section.find("trace"); trace && !trace->is_null()) {
    profiling.trace = read_trace(section.section("trace"));
  }
  check_range(section, profiling.begin_on_batch, profiling.end_after_batch);
  // A range that nothing is done with would be a setting without effect.
  const auto refuse_range = [&](const std::string& why) {
    if (profiling.begin_on_batch != 0) section.report(*section.find("begin_on_batch"), "begin_on_batch", why);
    if (profiling.end_after_batch) section.report(*section.find("end_after_batch"), "end_after_batch", why);
  };
  if (profiling.trace) {
    refuse_range("has no effect beside profiling.trace, which names the batches; keep one of them");
  } else if (!profiling.enabled) {
    refuse_range("has no effect while profiling.enabled is false");
  }
  if (const Value* prometheus = section.find("prometheus"); prometheus && !prometheus->is_null()) {
    read_prometheus(section.section("prometheus"), profiling.prometheus.emplace());
  }
  read_profiling_rules(section.section("rules"), experiment.profiling_rules);
  section.finish();
}

void read_searcher(Section searcher, Experiment& experiment) {
  // Determined's word for what dtrain does; its others are searches.
  if (const Value* name = searcher.find("name"); name && !(name->is_scalar() && name->text == "single")) {
    searcher.report(*name, "name",
                    "must be single, or left out, not " + describe(*name) +
                        ": dtrain does not search hyperparameters; each value is a launch of its own, with --set "
                        "hyperparameters.NAME=VALUE");
  }
  experiment.searcher.metric = searcher.text("metric", "");
  experiment.searcher.smaller_is_better = searcher.boolean("smaller_is_better", true);
  if (searcher.find("max_length")) {
    experiment.searcher.max_length = searcher.length("max_length", {LengthUnit::kBatches, 1}, 1);
  } else {
    searcher.report_missing("max_length", "one of {batches: n}, {records: n}, {epochs: n}");
  }
  searcher.finish();
}

void read_checkpoints(Section& root) {
  const Length none{LengthUnit::kBatches, 0};
  const Length period = root.length("min_checkpoint_period", none, 0);
  if (period.count != 0) root.refuse_yet("min_checkpoint_period", kWhatIsSaved);
  const std::array<std::string, 3> policies{"best", "all", "none"};
  if (root.choice("checkpoint_policy", "best", policies) != "best") root.refuse_yet("checkpoint_policy", kWhatIsSaved);
  root.default_only_null("checkpoint_storage");
}

}  // namespace

void read_training(Section& root, Experiment& experiment) {
  read_hyperparameters(root, experiment);
  read_optimizations(root.section("optimizations"), experiment);
  read_profiling(root.section("profiling"), experiment);
  read_searcher(root.section("searcher"), experiment);
  read_checkpoints(root);
  experiment.min_validation_period = root.length("min_validation_period", {LengthUnit::kBatches, 0}, 0);
  experiment.perform_initial_validation = root.boolean("perform_initial_validation", false);
  experiment.records_per_epoch = root.optional_integer("records_per_epoch", 0, kMaxLength);
  if (experiment.records_per_epoch == 0) experiment.records_per_epoch.reset();  // Determined's way to leave it open
  experiment.max_restarts = static_cast<int>(root.integer("max_restarts", 0, 0, kMaxRestarts));
  experiment.scheduling_unit = root.integer("scheduling_unit", 100, 1, kMaxLength);
  const std::array<std::string, 2> on_non_finite{"warn", "stop"};
  experiment.stop_on_non_finite = root.choice("on_non_finite", "warn", on_non_finite) == "stop";

  const std::string weights = root.text("initial_weights", "");
  if (weights.empty()) return;
  if (!weights.ends_with(".safetensors")) {
    const Value* value = root.find("initial_weights");
    root.report(*value, "initial_weights", "must be the path of a .safetensors file, not " + describe(*value));
  }
  experiment.initial_weights = (experiment.file.parent_path() / weights).lexically_normal();
}

}  // namespace dtrain::config
