// The command line of a rank program.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/rank/mock.h"
#include "dtrain/rank/rank_session.h"
#include "dtrain/rank/resume.h"

namespace dtrain::rank {

namespace {

constexpr const char* kUsage =
    R"(usage: %s [--run-dir DIR [--or-continue]] [--set KEY=VALUE]... [--mock WHAT | --evaluate |
       --predict FILE [--batch-size N]] EXPERIMENT.yaml
       %s --continue RUN [--set KEY=VALUE]...

Trains what EXPERIMENT.yaml describes. Started by itself it is a single rank; started by `dtrain launch`, mpirun, srun
or torchrun-style variables (RANK, WORLD_SIZE, ...) it is one of several.

  --run-dir DIR     where to write the run (default: the next folder under runs/)
  --or-continue     if DIR holds a run, go on with it as --continue does, with the experiment that is given here: for
                    jobs that are started again with the same command
  --set KEY=VALUE   override one key of the experiment, for instance --set searcher.max_length.epochs=1
  --mock WHAT       leave something out, to measure the rest: loader (train on one batch again and again), train (read
                    batches and do nothing with them), comm (exchange no gradients), or loader,comm. No weights are
                    written
  --evaluate        compute the metrics of the validation with initial_weights, and train nothing
  --predict FILE    write the model's outputs for the validation data to FILE (.npy, .safetensors, .jsonl), and train
                    nothing
  --batch-size N    with --predict: the samples of a batch, which one rank computes (default: those of a slot in the
                    training)
  --continue RUN    go on with a run (its folder, or its number or name under ./runs) in its own folder, from its newest
                    checkpoint that is whole, with the experiment that it was started with
  --contents FILE   read FILE in place of EXPERIMENT.yaml, to whose folder relative paths remain relative
  --help            this text

examples:
  dtrain launch EXPERIMENT.yaml           one rank a slot, on this machine
  mpirun -np 2 %s EXPERIMENT.yaml
)";

// The names of the options, after "experiment", which is no option.
const std::vector<std::string> kOptionNames{"experiment", "run-dir",    "or-continue", "set",      "mock", "evaluate",
                                            "predict",    "batch-size", "continue",    "contents", "help"};

[[noreturn]] void refuse(const std::string& program, const std::string& message) {
  std::fprintf(stderr, "%s: %s\n%s: --help shows the usage\n", program.c_str(), message.c_str(), program.c_str());
  std::exit(static_cast<int>(ExitCode::kBadInput));
}

// Returns "; did you mean --run-dir?", or nothing.
std::string suggestion(const std::string& argument) {
  const std::string given = argument.substr(0, argument.find('='));
  const auto first = given.find_first_not_of('-');
  if (first == std::string::npos) return "";
  const auto near = nearest(given.substr(first), kOptionNames);
  if (!near) return "";
  if (*near == kOptionNames.front()) return "; the experiment file is given by its path alone";
  return "; did you mean --" + *near + "?";
}

void go_on_with(const std::string& run, RankOptions& options) {
  const ContinuedRun continued = read_continued_run(run);
  options.continues = true;
  options.run_dir = continued.folder.path;
  options.experiment_file = continued.experiment_file;
  options.contents = continued.contents;
  options.overrides = merge_overrides(continued.overrides, options.overrides);
}

}  // namespace

RankOptions parse_rank_arguments(int argc, char** argv) {
  RankOptions options;
  std::vector<std::string> mock;
  std::string continued;
  options.program = argc > 0 ? argv[0] : "rank";
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    // Reads the value of "--name VALUE" or "--name=VALUE" if this is that option.
    const auto value_of = [&](const std::string& name, std::string* value) {
      if (argument == name) {
        if (++i >= argc) refuse(options.program, name + " needs a value");
        *value = argv[i];
        return true;
      }
      if (argument.rfind(name + "=", 0) != 0) return false;
      *value = argument.substr(name.size() + 1);
      return true;
    };
    std::string value;
    if (argument == "--help" || argument == "-h") {
      std::printf(kUsage, options.program.c_str(), options.program.c_str(), options.program.c_str());
      std::exit(static_cast<int>(ExitCode::kDone));
    } else if (value_of("--run-dir", &value)) {
      options.run_dir = value;
    } else if (value_of("--set", &value)) {
      options.overrides.push_back(value);
    } else if (value_of("--mock", &value)) {
      mock.push_back(value);
    } else if (argument == "--evaluate") {
      options.evaluates = true;
    } else if (value_of("--predict", &value)) {
      options.evaluates = true;
      options.predictions = value;
    } else if (value_of("--orders", &value)) {  // of a validation beside the training: see orders()
      options.evaluates = true;
      options.orders = value;
    } else if (value_of("--batch-size", &value)) {
      std::string_view text = value;
      options.prediction_batch = take_number<std::int64_t>(text).value_or(0);
      if (options.prediction_batch < 1 || !text.empty()) refuse(options.program, "--batch-size needs a number above 0");
    } else if (value_of("--continue", &value)) {
      continued = value;
    } else if (argument == "--or-continue") {
      options.continues_if_there = true;
    } else if (value_of("--contents", &value)) {
      options.contents = value;
    } else if (argument.size() > 1 && argument.front() == '-') {
      refuse(options.program, "unknown option " + argument + suggestion(argument));
    } else if (!options.experiment_file.empty()) {
      refuse(options.program,
             "more than one experiment file: " + options.experiment_file.string() + " and " + argument);
    } else {
      options.experiment_file = argument;
    }
  }
  const bool says_what =
      !options.experiment_file.empty() || !options.run_dir.empty() || !mock.empty() || options.evaluates;
  if (!continued.empty() && says_what) {
    refuse(options.program, "--continue takes the experiment and the folder from the run; it goes with --set alone");
  }
  if (options.evaluates && !mock.empty()) refuse(options.program, "--evaluate and --predict do not go with --mock");
  if (options.prediction_batch > 0 && options.predictions.empty()) {
    refuse(options.program, "--batch-size is for --predict");
  }
  if (options.continues_if_there && options.run_dir.empty()) refuse(options.program, "--or-continue needs --run-dir");
  if (continued.empty() && options.experiment_file.empty()) refuse(options.program, "no experiment file given");
  try {
    options.mock = parse_mock(mock);
    if (!continued.empty()) go_on_with(continued, options);
  } catch (const ConfigError& error) {
    refuse(options.program, error.what() + ("; " + error.remedy()));
  }
  return options;
}

namespace {

struct Word {
  std::string_view name;
  bool Mock::*member;
  std::string_view text;
};
constexpr std::array<Word, 3> kWords{{
    {"loader", &Mock::loader, "one batch is trained on again and again"},
    {"train", &Mock::train, "batches are read, and nothing is done with them"},
    {"comm", &Mock::comm, "gradients are not exchanged"},
}};

const Word& find_word(const std::string& name) {
  const auto found = std::find_if(kWords.begin(), kWords.end(), [&](const Word& word) { return word.name == name; });
  if (found != kWords.end()) return *found;
  std::vector<std::string> names;
  for (const Word& word : kWords) names.emplace_back(word.name);
  throw ConfigError("--mock: there is no '" + name + "'", "it is one of " + join(names, ", ") + ", or loader,comm");
}

std::vector<std::string> of_words(const Mock& mock, std::string_view Word::*part) {
  std::vector<std::string> result;
  for (const Word& word : kWords) {
    if (mock.*word.member) result.emplace_back(word.*part);
  }
  return result;
}

}  // namespace

Mock parse_mock(const std::vector<std::string>& words) {
  Mock mock;
  for (const std::string& list : words) {
    for (const std::string& name : split(list, ',')) mock.*find_word(name).member = true;
  }
  if (mock.train && (mock.loader || mock.comm)) {
    throw ConfigError("--mock: train already leaves out everything but loading, so it cannot be combined",
                      "start one run with --mock train, and another with --mock loader,comm");
  }
  return mock;
}

std::string to_string(const Mock& mock) {
  return join(of_words(mock, &Word::name), ",");
}

std::string mock_text(const Mock& mock) {
  return "mock run (" + to_string(mock) + "): " + join(of_words(mock, &Word::text), ", ") +
         "; its weights mean nothing";
}

Json to_json(const Mock& mock) {
  return {{"what", to_string(mock)}, {"text", mock_text(mock)}};
}

void check_mock(const Mock& mock, int world_size) {
  if (!mock.comm || world_size > 1) return;
  throw ConfigError("--mock comm: a run with one rank has no exchange to leave out",
                    "leave it out, or give the run more ranks (resources.slots_per_trial)");
}

}  // namespace dtrain::rank
