// How fast steps are, model by model: ours as it comes and with mixed precision, against DistributedDataParallel and
// against one process with all cores, each as it comes and as an expert tunes it.
//
//   bench_compute [--json] [--quick] [--seconds N] [--models M,…] [--contestants C,…]
//
// Two cores: two ranks with a thread each, or one with two, the same global batches on all sides. The contestants of a
// model are alive at once and take turns of a few steps each, so that what the machine does meanwhile hits all of them
// alike; the first step of a turn does not count, because it finds the caches full of another contestant's data.
//   ours                `dtrain launch` with default settings
//   ours_bf16           with optimizations.mixed_precision: bf16 and memory_format: auto
//   ours_pure_bf16      with optimizations.mixed_precision: pure_bf16 and memory_format: auto
//   ours_one…           one rank with both cores (resources.slots_per_trial: 1): ours_one, ours_one_bf16,
//                       ours_one_pure_bf16
//   ddp                 Python's DDP over gloo with AdamW, float32, nothing tuned
//   expert              the same tuned (ddp_compute.py says how), float32
//   expert_bf16         tuned, under autocast to bfloat16
//   compiled            expert_bf16 with torch.compile; null with its cause where that does not run
//   plain, plain_expert, plain_bf16   as ddp, expert, expert_bf16, but one process with both cores and without DDP
// Without a list, contestants in bfloat16 are left out where the processor has no instructions for it.
// Prints a row a model: medians over steps in milliseconds, of the slowest rank, ratios, and shares of the roofline.
// With --json each row also goes to standard error when its model ends. --quick: the CNN and the MLP with the
// contestants that their ratios need, two turns of each. --seconds: of the whole, split evenly over the models.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "compute_model.h"
#include "dtrain/base/error.h"
#include "dtrain/host/cpu.h"

namespace {

using namespace dtrain;

struct Settings {
  bool json = false;
  bool quick = false;
  int seconds = 0;
  std::vector<std::string> models;
  std::set<std::string> contestants;
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> words;
  std::istringstream stream(list);
  for (std::string word; std::getline(stream, word, ',');) words.push_back(word);
  return words;
}

[[noreturn]] void show_usage() {
  std::cerr << "usage: bench_compute [--json] [--quick] [--seconds N of the whole] [--models fashion_cnn,mlp,gpt,"
               "gpt_50m,resnet18] [--contestants "
               "ours,ours_bf16,ours_pure_bf16,ours_one,ours_one_bf16,ours_one_pure_bf16,ddp,expert,"
               "expert_bf16,compiled,plain,plain_expert,plain_bf16]\n";
  std::exit(2);
}

Settings parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool has_value = i + 1 < argc;
    if (word == "--json") {
      settings.json = true;
    } else if (word == "--quick") {
      settings.quick = true;
    } else if (word == "--seconds" && has_value) {
      settings.seconds = std::atoi(argv[++i]);
    } else if (word == "--models" && has_value) {
      settings.models = split(argv[++i]);
    } else if (word == "--contestants" && has_value) {
      for (std::string& name : split(argv[++i])) settings.contestants.insert(std::move(name));
    } else {
      show_usage();
    }
  }
  if (settings.models.empty()) {
    settings.models = settings.quick ? std::vector<std::string>{"fashion_cnn", "mlp"} : bench::compute_models();
  }
  if (settings.contestants.empty()) {
    settings.contestants = {"ours", "ours_bf16",   "ours_one", "ours_one_bf16",
                            "ddp",  "expert_bf16", "plain",    "plain_bf16"};
    if (!settings.quick) settings.contestants.insert({"ours_pure_bf16", "expert", "compiled"});
    if (const auto instructions = host::cpu_instructions(); instructions && !instructions->bf16) {
      std::cerr << "bench_compute: the processor has no bfloat16 instructions: contestants in bfloat16 are left out\n";
      std::erase_if(settings.contestants,
                    [](const std::string& name) { return name.ends_with("bf16") || name == "compiled"; });
    }
  }
  if (settings.seconds == 0) settings.seconds = settings.quick ? 10 : 215;
  return settings;
}

// The ratios that have goals, under the names of the models that have them.
void add_headlines(Json& result) {
  const std::map<std::string, std::string> short_names{{"fashion_cnn", "cnn"}};
  for (const Json& row : Json(result.at("models"))) {
    const auto name = row.at("model").get<std::string>();
    const auto found = short_names.find(name);
    const std::string prefix = found == short_names.end() ? name : found->second;
    for (const char* ratio : {"default_ratio", "bf16_ratio", "expert_ratio", "plain_ratio", "plain_bf16_ratio",
                              "roofline", "bf16_roofline"}) {
      if (row.contains(ratio) && !row.at(ratio).is_null()) result[prefix + "_" + ratio] = row.at(ratio);
    }
  }
}

void print_table(const Json& result) {
  for (const Json& row : result.at("models")) {
    for (const auto& [name, value] : row.items()) {
      std::cout << (name == "model" ? "" : "  ") << name << " "
                << (value.is_string() ? std::string(value) : to_line(value)) << "\n";
    }
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const Settings settings = parse(argc, argv);
  const SystemClock clock;
  const Nanoseconds started = clock.monotonic();
  Json result = {{"models", Json::array()}};
  for (std::size_t i = 0; i < settings.models.size(); ++i) {
    const auto share = std::chrono::milliseconds(1000LL * settings.seconds * static_cast<long long>(i + 1) /
                                                 static_cast<long long>(settings.models.size()));
    result["models"].push_back(
        bench::compare(settings.models[i], settings.contestants, settings.quick ? 2 : 3, started + share));
    if (settings.json) std::cerr << to_line(result["models"].back()) << std::endl;
  }
  add_headlines(result);
  if (settings.json) {
    std::cout << to_line(result) << "\n";
  } else {
    print_table(result);
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "bench_compute: " << dtrain::describe(error) << "\n";
  return 1;
}
