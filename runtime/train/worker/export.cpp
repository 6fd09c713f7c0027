#include "worker/export.h"

#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/run/rank_session.h"
#include "worker/file_model.h"
#include "model/weights.h"

namespace dtrain::worker {

namespace {

namespace fs = std::filesystem;

constexpr const char* kUsage =
    "usage: dtrain-worker --export CHECKPOINT OUT [--format torchscript|pt2] [--model FILE] [--eval-out FILE]\n\n"
    "Writes the weights of CHECKPOINT (…/checkpoints/step-120), in the model that was trained, as a file of its kind\n"
    "(TorchScript or torch.export), OUT. --model names the model's file where it is no longer where the run found it.\n"
    "--eval-out: of a pair of files, where the one for validation is written.\n";

struct Request {
  fs::path checkpoint, out, model, eval_out;
  std::string format;  // empty: the format of the model's file
};

Request parse(std::span<char* const> arguments) {
  std::vector<fs::path> paths;
  Request request;
  for (std::size_t i = 2; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (argument == "--model" && i + 1 < arguments.size()) {
      request.model = arguments[++i];
    } else if (argument == "--format" && i + 1 < arguments.size()) {
      request.format = arguments[++i];
    } else if (argument == "--eval-out" && i + 1 < arguments.size()) {
      request.eval_out = arguments[++i];
    } else if (argument.size() > 1 && argument.front() == '-') {
      throw ConfigError("--export: unknown option " + std::string(argument), kUsage);
    } else {
      paths.emplace_back(argument);
    }
  }
  if (paths.size() != 2) throw ConfigError("--export needs a checkpoint and a file to write", kUsage);
  request.checkpoint = paths[0];
  request.out = paths[1];
  return request;
}

// Returns the model's file, which the checkpoint's run has recorded. `fact`: "model", or "eval_model" of a pair.
fs::path model_of(const checkpoints::Entry& checkpoint, const char* fact) {
  const auto model = checkpoint.about.run.find(fact);
  if (model == checkpoint.about.run.end() || !model->is_string()) {
    throw ConfigError(checkpoint.path.string() + " is of a run without `model:`, whose program makes the model",
                      "use the weights alone: dtrain checkpoint export writes them as safetensors");
  }
  const fs::path file = model->get<std::string>();
  if (fs::exists(file)) return file;
  throw ConfigError("the run's model, " + file.string() + ", is no longer there", "name it with --model FILE");
}

void write_model(const Request& request) {
  const std::vector<std::string> wrong = checkpoints::verify(request.checkpoint);
  if (!wrong.empty()) {
    throw ConfigError(request.checkpoint.string() + " cannot be used: " + wrong.front(),
                      "dtrain checkpoint list shows the checkpoints of a run");
  }
  const checkpoints::Entry checkpoint = checkpoints::look_at(request.checkpoint);
  const fs::path file = request.model.empty() ? model_of(checkpoint, "model") : request.model;
  const std::unique_ptr<FileModel> model = load_model(file);
  const std::string format = model->extension() == std::string(".pt2") ? "pt2" : "torchscript";
  if (!request.format.empty() && request.format != format) {
    throw ConfigError(file.string() + " is no model in the form " + request.format + ", and models keep their form",
                      "use --format " + format);
  }
  config::InitialWeights weights;
  weights.file = request.checkpoint / checkpoints::kModelFile;
  try {
    train::load_weights(*model->tree(), weights, file.string());
  } catch (const ConfigError& error) {
    throw ConfigError(error.what(), "the file is another model now; name the one that was trained with --model FILE");
  }
  model->save(request.out);
  const auto say = [&](const fs::path& out, const fs::path& from) {
    std::printf("%s: %s with the weights of %s\n", out.c_str(), from.c_str(), request.checkpoint.c_str());
  };
  say(request.out, file);
  if (request.eval_out.empty()) return;
  const fs::path eval_file = model_of(checkpoint, "eval_model");
  load_eval_model(eval_file, *model)->save(request.eval_out);
  say(request.eval_out, eval_file);
}

}  // namespace

bool asks_for_export(int argc, char** argv) {
  return argc > 1 && std::string_view(argv[1]) == "--export";
}

int export_checkpoint(int argc, char** argv) {
  try {
    write_model(parse({argv, static_cast<std::size_t>(argc)}));
    return static_cast<int>(ExitCode::kDone);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dtrain-worker: %s\n", dtrain::describe(error).c_str());
    const auto* known = dynamic_cast<const Error*>(&error);
    if (known && !known->remedy().empty()) std::fprintf(stderr, "  %s\n", known->remedy().c_str());
    return run::exit_code_of(error);
  }
}

}  // namespace dtrain::worker
