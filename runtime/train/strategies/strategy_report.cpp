#include "strategies/strategy_report.h"

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/units.h"

namespace dtrain::train {

namespace {

struct HostBytes {
  std::int64_t parameters = 0, state = 0;
  std::int64_t all() const { return parameters + state; }
};

HostBytes bytes_of_host(const StrategyFacts& facts, bool sharded) {
  if (sharded && facts.one_copy) return {facts.parameter_bytes, facts.state_bytes};
  HostBytes bytes{facts.parameter_bytes * facts.ranks_of_host, facts.state_bytes * facts.ranks_of_host};
  if (sharded) bytes.state /= facts.world_size;
  return bytes;
}

Json to_json(const HostBytes& bytes) {
  return {{"parameters", bytes.parameters}, {"optimizer_state", bytes.state}};
}

const char* name_of(bool sharded) {
  return sharded ? "sharded" : "replicated";
}

std::string time_text(const StrategyFacts& facts) {
  if (!facts.replicated_ms || !facts.sharded_ms) return {};
  const double taken = facts.sharded ? *facts.sharded_ms : *facts.replicated_ms;
  const double other = facts.sharded ? *facts.replicated_ms : *facts.sharded_ms;
  return fmt::format("; a step takes {:.2f} ms, {} {:.2f} ms", taken, name_of(!facts.sharded), other);
}

Json to_json(const GradientFacts& gradients) {
  Json json{{"sharded", gradients.sharded},
            {"bytes", gradients.bytes},
            {"kept_bytes", gradients.kept_bytes},
            {"short_of_memory", gradients.short_of_memory}};
  if (gradients.whole_ms) json["whole_ms"] = *gradients.whole_ms;
  if (gradients.sharded_ms) json["sharded_ms"] = *gradients.sharded_ms;
  return json;
}

// "; between steps a rank keeps 12.5 MiB of its 50.0 MiB of gradients (a step takes 8.00 ms, with all of them 7.95 ms)"
std::string gradients_text(const GradientFacts& gradients) {
  if (!gradients.decided) return {};
  const std::string all = format_bytes(static_cast<double>(gradients.bytes));
  std::string why;
  if (gradients.short_of_memory) {
    why = " (the host is short of memory)";
  } else if (gradients.whole_ms && gradients.sharded_ms) {
    why = gradients.sharded ? fmt::format(" (a step takes {:.2f} ms, with all of them {:.2f} ms)",
                                          *gradients.sharded_ms, *gradients.whole_ms)
                            : fmt::format(" (a step takes {:.2f} ms, without the others' {:.2f} ms)",
                                          *gradients.whole_ms, *gradients.sharded_ms);
  }
  if (!gradients.sharded) return fmt::format("; between steps a rank keeps all of its {} of gradients{}", all, why);
  return fmt::format("; between steps a rank keeps {} of its {} of gradients{}",
                     format_bytes(static_cast<double>(gradients.kept_bytes)), all, why);
}

}  // namespace

Json describe_strategy(const StrategyFacts& facts) {
  const HostBytes bytes = bytes_of_host(facts, facts.sharded);
  const HostBytes replicated = bytes_of_host(facts, false);
  Json json{{"strategy", name_of(facts.sharded)},
            {"one_copy", facts.one_copy},
            {"host_bytes", to_json(bytes)},
            {"replicated_host_bytes", to_json(replicated)}};
  if (facts.replicated_ms) json["replicated_ms"] = *facts.replicated_ms;
  if (facts.sharded_ms) json["sharded_ms"] = *facts.sharded_ms;
  for (const StrategyTurn& turn : facts.turns) {
    json["turns"].push_back(
        {{"strategy", name_of(turn.sharded)}, {"first_batch", turn.first_batch}, {"last_batch", turn.last_batch}});
  }
  const int sharers = facts.on_gpus ? facts.ranks_of_host : 1;
  const char* const place = facts.on_gpus ? "a GPU" : "a host";
  const auto size = [&](const HostBytes& of) { return format_bytes(static_cast<double>(of.all()) / sharers); };
  std::string text;
  if (facts.sharded) {
    text = fmt::format("sharded updates: {} of parameters and optimizer state {} instead of {}", size(bytes), place,
                       size(replicated));
    if (facts.one_copy) text += fmt::format(" (one copy for {} ranks)", facts.ranks_of_host);
  } else {
    text = fmt::format("replicated updates: {} of parameters and optimizer state {}", size(bytes), place);
  }
  text += time_text(facts);
  if (facts.gradients) {
    json["gradients"] = to_json(*facts.gradients);
    if (facts.sharded) text += gradients_text(*facts.gradients);
  }
  json["text"] = text;
  return json;
}

}  // namespace dtrain::train
