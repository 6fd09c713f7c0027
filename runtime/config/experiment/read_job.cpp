#include <algorithm>
#include <array>
#include <limits>

#include "document/scalar.h"
#include "document/words.h"
#include "experiment/exchange_words.h"
#include "experiment/read_sections.h"

namespace dtrain::config {
namespace {

void read_name(Section& root, Experiment& experiment) {
  constexpr std::size_t kLongestName = 200;
  experiment.name = root.text("name", experiment.file.stem().string());
  const bool printable = std::none_of(experiment.name.begin(), experiment.name.end(),
                                      [](char letter) { return static_cast<unsigned char>(letter) < 0x20; });
  if (experiment.name.empty() || experiment.name.size() > kLongestName || !printable) {
    if (const Value* value = root.find("name")) {
      root.report(*value, "name",
                  "must be one line of 1 to " + std::to_string(kLongestName) + " bytes, not " + describe(*value));
    }
  }
  experiment.description = root.text("description", "");
  experiment.labels = root.texts("labels");
}

void read_entrypoint(Section& root, Experiment& experiment) {
  const std::string expected = "a program and its arguments, as text or as a list";
  const Value* value = root.find("entrypoint");
  if (!value) {
    root.report_missing("entrypoint", expected + "; or model: the path of a TorchScript file");
    return;
  }
  if (value->kind == Value::Kind::kList) {
    experiment.entrypoint = root.texts("entrypoint");
  } else if (value->is_scalar()) {
    auto words = split_words(value->text);
    if (!words) {
      root.report(*value, "entrypoint", "has a quote or backslash with nothing after it: " + describe(*value));
      return;
    }
    experiment.entrypoint = std::move(*words);
  } else {
    root.report(*value, "entrypoint", "must be " + expected + ", not " + describe(*value));
    return;
  }
  if (experiment.entrypoint.empty() || experiment.entrypoint.front().empty()) {
    root.report(*value, "entrypoint", "names no program; it must be " + expected);
  }
}

void read_resources(Section resources, Experiment& experiment) {
  Resources& result = experiment.resources;
  result.slots_per_trial = static_cast<int>(resources.integer("slots_per_trial", 1, 1, 65536));
  const std::array<std::string, 3> slot_types{"auto", "cpu", "cuda"};
  const std::string slot_type = resources.choice("slot_type", "auto", slot_types);
  if (slot_type == "cuda") resources.refuse_yet("slot_type", "use auto or cpu");
  result.slot_type = slot_type == "cpu" ? SlotType::kCpu : SlotType::kAuto;
  result.is_single_node = resources.boolean("is_single_node", false);
  result.priority = static_cast<int>(resources.integer("priority", 42, 1, 99));
  result.resource_pool = resources.text("resource_pool", "default");
  const Value* pool = resources.find("resource_pool");
  if (pool && pool->is_scalar() && result.resource_pool.empty())
    resources.report(*pool, "resource_pool", "must be a name, not " + describe(*pool));
  if (const auto most = resources.optional_integer("max_slots", 1, 65536)) {
    result.max_slots = static_cast<int>(*most);
    const Value& value = *resources.find("max_slots");
    if (*most < result.slots_per_trial && as_integer(value).value == *most) {
      resources.report(value, "max_slots",
                       "must be at least slots_per_trial, which is " + std::to_string(result.slots_per_trial) +
                           ", not " + describe(value));
    }
  }
  resources.finish();
}

bool is_variable_name(const std::string& name) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !name.empty() && is_letter(name[0]) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

void read_environment(Section environment, Experiment& experiment) {
  const std::string key = "environment_variables";
  auto& variables = experiment.environment_variables;
  const auto add = [&](const Value& at, const std::string& name, const std::string& text) {
    const bool twice =
        std::any_of(variables.begin(), variables.end(), [&](const auto& one) { return one.first == name; });
    if (!is_variable_name(name)) {
      environment.report(at, key, quote(name) + " cannot be the name of an environment variable");
    } else if (name.starts_with("DTRAIN_")) {
      environment.report(at, key, quote(name) + " is one of dtrain's own variables, which it sets itself");
    } else if (twice) {
      environment.report(at, key, quote(name) + " is given twice");
    } else {
      variables.emplace_back(name, text);
    }
  };
  const Value* value = environment.find(key);
  if (value && value->is_map()) {
    for (const Entry& entry : value->entries) {
      if (entry.value.is_null() || entry.value.is_scalar()) {
        add(entry.value, entry.key, entry.value.text);
      } else {
        environment.report(entry.value, key,
                           quote(entry.key) + " must have text as its value, not " + describe(entry.value));
      }
    }
  } else if (value && value->kind == Value::Kind::kList) {
    for (const Value& item : value->items) {
      const auto equals = item.text.find('=');
      if (item.is_scalar() && equals != std::string::npos) {
        add(item, item.text.substr(0, equals), item.text.substr(equals + 1));
      } else {
        environment.report(item, key, "every item must be NAME=value, not " + describe(item));
      }
    }
  } else if (value && !value->is_null()) {
    environment.report(*value, key, "must be a mapping, or a list of NAME=value, not " + describe(*value));
  }
  environment.finish();
}

}  // namespace

void read_job(Section& root, Experiment& experiment) {
  read_name(root, experiment);
  if (!read_model(root, experiment)) {
    read_entrypoint(root, experiment);
    experiment.data = root.free_map("data");
  }
  read_resources(root.section("resources"), experiment);
  read_environment(root.section("environment"), experiment);

  Section communication = root.section("communication");
  const double seconds = communication.number("timeout", 600, 0.1, 1'000'000);
  experiment.communication_timeout = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
  experiment.communication_backend =
      meaning_of(kBackends, communication.choice("backend", "auto", words_of(kBackends)));
  communication.finish();

  Section reproducibility = root.section("reproducibility");
  experiment.experiment_seed = static_cast<std::uint64_t>(
      reproducibility.integer("experiment_seed", 0, 0, std::numeric_limits<std::int64_t>::max()));
  reproducibility.finish();
}

}  // namespace dtrain::config
