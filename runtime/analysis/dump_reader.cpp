#include "dtrain/analysis/dump_reader.h"

#include <fstream>
#include <set>

#include "json_fields.h"

namespace dtrain::analysis {
namespace {

constexpr int kNewestSchema = 1;

using profile::Phase;

StepLine to_step(const Json& json) {
  StepLine step{integer(json, "batch"),
                integer(json, "epoch"),
                integer(json, "start_ns"),
                integer(json, "wall_ns"),
                integer(json, "samples"),
                false,
                {}};
  const auto exchanged = json.find("exchanged");
  step.exchanged = exchanged != json.end() && exchanged->is_boolean() && exchanged->get<bool>();
  const auto phases = json.find("phases");
  if (phases == json.end() || !phases->is_object()) return step;
  for (std::size_t i = 0; i < profile::kPhaseCount; ++i) {
    step.phases[i] = integer(*phases, std::string(profile::name_of(static_cast<Phase>(i))));
  }
  // In the dump "train_batch" holds its parts.
  step.phases[static_cast<std::size_t>(Phase::kTrainBatch)] -=
      step.phases[static_cast<std::size_t>(Phase::kForward)] + step.phases[static_cast<std::size_t>(Phase::kBackward)];
  return step;
}

CollectiveLine to_collective(const Json& json) {
  CollectiveLine line;
  line.batch = integer(json, "batch");
  line.sequence = integer(json, "sequence");
  line.bucket = integer(json, "bucket", -1);
  line.bytes = integer(json, "bytes");
  line.world_size = integer(json, "world_size", 1);
  line.operation = text(json, "operation");
  line.enqueued_ns = integer(json, "enqueued_ns");
  line.started_ns = integer(json, "started_ns");
  line.ended_ns = integer(json, "ended_ns");
  line.exposed_ns = integer(json, "exposed_ns");
  line.bus_bandwidth = number(json, "bus_bandwidth");
  return line;
}

// All of an object but those `without`.
Metrics numbers(const Json& object, const std::set<std::string>& without) {
  Metrics result;
  for (const auto& [key, value] : object.items()) {
    if (value.is_number() && !without.contains(key)) result.emplace_back(key, value.get<double>());
  }
  return result;
}

SystemLine to_system(const Json& json) {
  SystemLine line;
  line.time_ns = integer(json, "time_ns");
  line.interval_ns = integer(json, "interval_ns");
  line.metrics = numbers(json, {"time_ns", "interval_ns"});
  if (const auto cores = json.find("cpu_util_per_core"); cores != json.end() && cores->is_array()) {
    for (const Json& core : *cores) line.cpu_util_per_core.push_back(core.is_number() ? core.get<double>() : 0);
  }
  if (const auto processes = json.find("processes"); processes != json.end() && processes->is_array()) {
    for (const Json& process : *processes) {
      if (!process.is_object()) continue;
      line.processes.push_back({static_cast<int>(integer(process, "rank", -1)), number(process, "resident_memory"),
                                number(process, "cpu_util")});
    }
  }
  if (const auto gpus = json.find("gpus"); gpus != json.end() && gpus->is_array()) {
    for (const Json& gpu : *gpus) {
      if (gpu.is_object()) line.gpus.emplace_back(integer(gpu, "index", -1), numbers(gpu, {"index"}));
    }
  }
  return line;
}

// False for a kind it does not know.
bool dispatch(const Json& json, const std::string& kind, DumpHandler& handler) {
  if (kind == "step") {
    handler.step(to_step(json));
  } else if (kind == "collective") {
    handler.collective(to_collective(json));
  } else if (kind == "loader") {
    handler.loader(
        {integer(json, "batch"), integer(json, "time_ns"), integer(json, "queue_depth"), integer(json, "workers")});
  } else if (kind == "system") {
    handler.system(to_system(json));
  } else if (kind == "gpu") {
    handler.gpu({integer(json, "index", -1), text(json, "uuid"), text(json, "name"), integer(json, "total_memory")});
  } else if (kind == "part") {
    handler.part({text(json, "part"), integer(json, "start_ns"), integer(json, "end_ns")});
  } else if (kind == "header") {
    handler.header(json);
  } else if (kind == "dropped") {
    handler.dropped(integer(json, "count"));
  } else if (kind == "lost") {
    handler.lost(integer(json, "count"), text(json, "reason"));
  } else if (kind == "end") {
    handler.end({integer(json, "time_ns"), text(json, "how"), integer(json, "dropped"), integer(json, "lost")});
  } else {
    return false;
  }
  return true;
}

}  // namespace

ReadResult read_dump(const std::filesystem::path& path, DumpHandler& handler) {
  ReadResult result;
  std::ifstream file(path);
  if (!file) {
    result.error = "cannot read " + path.string();
    return result;
  }
  for (std::string line; std::getline(file, line);) {
    const bool cut_off = file.eof();  // no newline behind it
    if (line.empty()) continue;
    const Json json = Json::parse(line, nullptr, false);
    const std::string kind = json.is_object() ? text(json, "record") : std::string();
    if (kind.empty()) {
      cut_off ? void(result.torn_end = true) : void(++result.unreadable);
      continue;
    }
    if (kind == "header" && integer(json, "schema") > kNewestSchema) {
      result.error = path.string() + " has schema " + std::to_string(integer(json, "schema")) + "; this dtrain reads " +
                     std::to_string(kNewestSchema) + " and older: use the dtrain that wrote it, or a newer one";
      return result;
    }
    ++(dispatch(json, kind, handler) ? result.lines : result.unknown);
  }
  return result;
}

}  // namespace dtrain::analysis
