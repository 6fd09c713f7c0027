#include "dtrain/profile/run_records.h"

#include <span>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/base/untrusted.h"

namespace dtrain::profile {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostNamed = 20;
// The metrics of 5 million reports. All of them are held in memory while a run is analysed.
constexpr std::uint64_t kLargestFile = std::uint64_t{1} << 30;

using enum KnownMember::Type;

// The members that dtrain reads. Others may have any type, and are ignored.
constexpr KnownMember kEventMembers[] = {
    {"time", kText},         {"event", kText},          {"rank", kInteger},       {"pid", kInteger},
    {"host", kText},         {"start_ticks", kInteger}, {"attempt", kInteger},    {"restart", kInteger},
    {"exit_code", kInteger}, {"step", kInteger},        {"epoch", kInteger},      {"bytes", kInteger},
    {"count", kInteger},     {"first_batch", kInteger}, {"last_batch", kInteger}, {"reason", kText},
    {"signal", kText},       {"cause", kText},          {"state", kText},         {"path", kText},
    {"status", kText},       {"agent", kText},          {"metric", kText},        {"metric_value", kNumber | kText},
    {"copy_s", kNumber},     {"wait_s", kNumber},       {"write_s", kNumber},     {"deleted", kList},
    {"retried", kTruth},
};

constexpr KnownMember kMetricsMembers[] = {
    {"time", kText},
    {"kind", kText},
    {"batch", kInteger},
    {"samples", kNumber},
    {"optimizer_steps", kInteger},
    {"learning_rate", kNumber | kText},
    {"gradient_norm", kNumber | kText},
    {"metrics", kObject},
};

constexpr KnownMember kPlanMembers[] = {
    {"name", kText},
    {"started_by", kText},
    {"world_size", kInteger},
    {"slot_type", kText},
    {"cluster", kText},
    {"cluster_file", kText},
    {"global_batch_size", kInteger | kNull},
    {"batch_per_rank", kInteger | kList},
    {"placement", kList},
    {"ranks", kList},
    {"overrides", kList},
    {"versions", kObject},
    {"experiment_file", kText},
    {"limits", kObject},
    {"gpu_limits", kObject},
    {"before", kObject | kNull},
    {"length", kObject},
    {"length.batches", kInteger | kNull},
    {"length.batches_per_epoch", kInteger | kNull},
    {"flops", kObject},
    {"flops.per_sample", kNumber},
    {"flops.dtype", kText},
    {"flops.device", kText},
    {"compression", kObject},
    {"compression.text", kText},
    {"strategy", kObject},
    {"strategy.strategy", kText},
    {"strategy.text", kText},
    {"non_finite", kObject},
    {"loss_scaling", kObject},
    {"cuda_graphs", kObject},
    {"mock", kObject},
    {"experiment", kObject},
    {"experiment.name", kText},
    {"experiment.searcher", kObject},
    {"experiment.searcher.metric", kText | kNull},
    {"experiment.searcher.smaller_is_better", kTruth},
    {"experiment.optimizations", kObject},
    {"experiment.optimizations.aggregation_frequency", kInteger},
    {"experiment.profiling", kObject},
    {"experiment.resources", kObject},
    {"experiment.hyperparameters", kObject},
};

const char* name_of(RecordFile file) {
  return file == RecordFile::kEvents ? "events.jsonl" : "metrics.jsonl";
}

std::span<const KnownMember> members_of(RecordFile file) {
  if (file == RecordFile::kEvents) return kEventMembers;
  return kMetricsMembers;
}

void take_out_wrong(Json& object, std::span<const KnownMember> members, const std::string& place, Damage& damage) {
  for (const std::string& problem : take_out_wrong_members(object, members)) damage.add(place + ": " + problem);
}

// Where the path is a link to nothing or to a device, there is something to be named.
bool is_there(const fs::path& path) {
  std::error_code code;
  return fs::symlink_status(path, code).type() != fs::file_type::not_found;
}

}  // namespace

void Damage::add(std::string text) {
  if (++count_ <= static_cast<std::int64_t>(kMostNamed)) first_.push_back(std::move(text));
}

void Damage::add(const Damage& more) {
  for (const std::string& text : more.first_) {
    if (first_.size() < kMostNamed) first_.push_back(text);
  }
  count_ += more.count_;
}

std::vector<std::string> Damage::lines() const {
  std::vector<std::string> lines = first_;
  const auto more = count_ - std::ssize(first_);
  if (more > 0) lines.push_back("and " + std::to_string(more) + " more like these");
  return lines;
}

std::string Damage::text() const {
  if (count_ == 0) return {};
  return first_.front() + (count_ > 1 ? " (and " + std::to_string(count_ - 1) + " more)" : "");
}

std::optional<Json> parse_record(RecordFile file, std::string_view line, std::int64_t number, Damage& damage) {
  return parse_record(file, line, name_of(file) + (":" + std::to_string(number)), damage);
}

std::optional<Json> parse_record(RecordFile file, std::string_view line, const std::string& place, Damage& damage) {
  if (trimmed(line).empty()) return std::nullopt;
  try {
    Json json = parse_untrusted(line);
    if (!json.is_object()) {
      damage.add(place + ": no object, which each line is");
      return std::nullopt;
    }
    take_out_wrong(json, members_of(file), place, damage);
    return json;
  } catch (const JsonError& error) {
    if (!error.cut_off()) damage.add(place + ": " + error.what());
    return std::nullopt;
  }
}

Damage read_lines(const fs::path& folder, RecordFile file, const LineUse& use) {
  Damage damage;
  const std::string name = name_of(file);
  if (!is_there(folder / name)) return damage;
  try {
    FileLines lines(open_regular(folder / name, kLargestFile));
    bool cut_off = false;
    for (std::string_view line; lines.next(line, cut_off);) use(line, lines.number(), damage);
    if (lines.too_long()) {
      damage.add(name + ":" + std::to_string(lines.number() + 1) + ": longer than " +
                 format_bytes(FileLines::kLongestLine) + "; it and what follows it is not read");
    }
  } catch (const Error& error) {
    damage.add(error.what());
  }
  return damage;
}

Damage read_records(const fs::path& folder, RecordFile file, const std::function<void(Json&&)>& use) {
  return read_lines(folder, file, [&](std::string_view line, std::int64_t number, Damage& damage) {
    if (auto json = parse_record(file, line, number, damage)) use(std::move(*json));
  });
}

Json read_plan(const fs::path& folder, Damage& damage) {
  const fs::path path = folder / "plan.json";
  if (!is_there(path)) return Json::object();
  try {
    Json plan = read_json(path);
    if (plan.is_object()) {
      take_out_wrong(plan, kPlanMembers, "plan.json", damage);
      return plan;
    }
    damage.add("plan.json: no object, which a plan is");
  } catch (const Error& error) {
    damage.add(error.what());
  }
  return Json::object();
}

}  // namespace dtrain::profile
