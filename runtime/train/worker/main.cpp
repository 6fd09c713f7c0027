// dtrain-worker EXPERIMENT.yaml: runs a rank of a `model:` experiment, which trains a model from a file without C++
// code. dtrain-worker --export: writes a checkpoint as such a file. dtrain-worker --inspect: prints a file's contents.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/limits.h"
#include "dtrain/base/text.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/rank/rank_session.h"
#include "dtrain/train/run_trial.h"
#include "exported/archive.h"
#include "exported/evaluation_mode.h"
#include "exported/exported_model.h"
#include "model/weights.h"
#include "worker/file_model.h"

namespace dtrain::worker {
namespace {

namespace fs = std::filesystem;
using exported::ExportedModel;
using exported::Program;

constexpr const char* kExportUsage =
    "usage: dtrain-worker --export CHECKPOINT OUT [--format torchscript|pt2] [--model FILE] [--eval-out FILE]\n\n"
    "Writes the weights of CHECKPOINT (…/checkpoints/step-120), in the model that was trained, as a file of its kind\n"
    "(TorchScript or torch.export), OUT. --model names the model's file where it is no longer where the run found it.\n"
    "--eval-out: of a pair of files, where the one for validation is written.\n";

struct ExportRequest {
  fs::path checkpoint, out, model, eval_out;
  std::string format;  // empty: the format of the model's file
};

ExportRequest parse_export(std::span<char* const> arguments) {
  std::vector<fs::path> paths;
  ExportRequest request;
  for (std::size_t i = 2; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (argument == "--model" && i + 1 < arguments.size()) {
      request.model = arguments[++i];
    } else if (argument == "--format" && i + 1 < arguments.size()) {
      request.format = arguments[++i];
    } else if (argument == "--eval-out" && i + 1 < arguments.size()) {
      request.eval_out = arguments[++i];
    } else if (argument.size() > 1 && argument.front() == '-') {
      throw ConfigError("--export: unknown option " + std::string(argument), kExportUsage);
    } else {
      paths.emplace_back(argument);
    }
  }
  if (paths.size() != 2) throw ConfigError("--export needs a checkpoint and a file to write", kExportUsage);
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

// Writes the weights of a checkpoint as a file of the model's kind, which Python reads: TorchScript (torch.jit.load) or
// a program of torch.export (torch.export.load).
void export_checkpoint(const ExportRequest& request) {
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

constexpr const char* kInspectUsage = "usage: dtrain-worker --inspect FILE [--json]";

std::string type_name(at::ScalarType type) {
  return std::string(c10::getDtypeNames(type).first);
}

// Writes a dynamic size as the name of its symbol.
Json shape_json(const exported::Input& input) {
  Json shape = Json::array();
  for (const exported::Dimension& dimension : input.shape) {
    if (const auto* size = std::get_if<std::int64_t>(&dimension)) {
      shape.push_back(*size);
    } else {
      shape.push_back(std::get<exported::Expression>(dimension).symbol().value_or("computed"));
    }
  }
  return shape;
}

Json tensor_json(const std::string& name, const at::Tensor& tensor) {
  return {{"name", name},
          {"type", type_name(tensor.scalar_type())},
          {"shape", tensor.sizes().vec()},
          {"trained", tensor.requires_grad()}};
}

Json inspect_json(const ExportedModel& model) {
  const Program& program = model.program();
  Json json{{"file", model.archive().file().string()},
            {"pytorch", program.torch_version},
            {"format", std::to_string(program.schema.first) + "." + std::to_string(program.schema.second)}};
  for (const char* list : {"inputs", "outputs", "parameters", "buffers"}) json[list] = Json::array();
  for (const exported::Input& input : program.inputs)
    json["inputs"].push_back({{"name", input.name}, {"type", type_name(input.type)}, {"shape", shape_json(input)}});
  for (const exported::Output& output : program.outputs) {
    if (output.is_tensor) json["outputs"].push_back(output.name);
  }
  for (const auto& item : model.tree()->named_parameters())
    json["parameters"].push_back(tensor_json(item.key(), item.value()));
  for (const auto& item : model.tree()->named_buffers()) {
    json["buffers"].push_back(tensor_json(item.key(), item.value()));
    json["buffers"].back().erase("trained");
  }
  std::map<std::string, int> operators;
  for (const exported::Instruction& instruction : program.instructions) {
    if (instruction.kind == exported::Instruction::Kind::kOperator) ++operators[instruction.target];
  }
  json["operators"] = operators;
  json["sizes"] = Json::object();
  for (const auto& [symbol, range] : program.ranges)
    json["sizes"][symbol] = {{"least", range.least}, {"most", or_null(range.most)}};
  json["conditions"] = Json::array();
  for (const exported::Guard& guard : program.guards) json["conditions"].push_back(guard.text);
  json["conditions_not_checked"] = program.unread_guards;
  json["switched_in_evaluation"] = exported::modal_operators(program);
  json["exported_in_evaluation_mode"] =
      exported::is_in_evaluation_mode(program) ? exported::modal_operators(program) : std::vector<std::string>();
  json["modules_in_evaluation_mode"] = exported::modules_in_evaluation(program);
  json["suspected_backward"] = program.suspected_backward;
  json["why_no_evaluation"] = program.why_no_evaluation;
  json["why_no_cuda_graph"] = model.why_not_repeatable();
  return json;
}

std::string words(const Json& list) {
  std::vector<std::string> texts;
  for (const Json& item : list) texts.push_back(item.is_string() ? item.get<std::string>() : item.dump());
  return join(texts, ", ");
}

void print_tensors(std::ostream& out, const char* kind, const Json& tensors) {
  out << kind << "\n";
  for (const Json& tensor : tensors) {
    out << "  " << tensor["name"].get<std::string>() << "  " << tensor["type"].get<std::string>() << " ["
        << words(tensor["shape"]) << "]" << (tensor.contains("trained") && !tensor["trained"] ? "  not trained" : "")
        << "\n";
  }
}

std::string inspect_text(const Json& json) {
  std::ostringstream out;
  out << json["file"].get<std::string>() << ": exported by PyTorch " << json["pytorch"].get<std::string>()
      << ", format " << json["format"].get<std::string>() << "\n";
  print_tensors(out, "inputs", json["inputs"]);
  const Json& outputs = json["outputs"];
  const bool is_single = outputs.size() == 1 && outputs[0] == "";
  out << "outputs\n  " << (is_single ? "one tensor" : words(outputs)) << "\n";
  print_tensors(out, "parameters", json["parameters"]);
  if (!json["buffers"].empty()) print_tensors(out, "buffers", json["buffers"]);
  out << "operators\n";
  for (const auto& [name, count] : json["operators"].items()) out << "  " << count.get<int>() << "  " << name << "\n";
  for (const auto& [symbol, range] : json["sizes"].items()) {
    const auto least = range["least"].get<std::int64_t>();
    out << "size " << symbol << ": " << (least > 2 ? "at least " + std::to_string(least) : std::string("any"));
    if (!range["most"].is_null()) out << ", at most " << range["most"].get<std::int64_t>();
    out << "\n";
  }
  for (const Json& condition : json["conditions"]) out << "condition: " << condition.get<std::string>() << "\n";
  for (const Json& condition : json["conditions_not_checked"])
    out << "condition that is not checked: " << condition.get<std::string>() << "\n";
  if (!json["exported_in_evaluation_mode"].empty())
    out << "exported in evaluation mode: " << words(json["exported_in_evaluation_mode"]) << "\n";
  if (!json["modules_in_evaluation_mode"].empty())
    out << "parts in evaluation mode: " << words(json["modules_in_evaluation_mode"]) << "\n";
  for (const Json& line : json["suspected_backward"])
    out << "a function whose backward is lost, or a module from elsewhere: " << line.get<std::string>() << "\n";
  const auto why = json["why_no_evaluation"].get<std::string>();
  if (!why.empty()) {
    out << "evaluation: needs a second file, because " << why << "\n";
  } else {
    const Json& switched = json["switched_in_evaluation"];
    out << "evaluation: from this file" << (switched.empty() ? "" : "; switched: " + words(switched)) << "\n";
  }
  const auto no_graph = json["why_no_cuda_graph"].get<std::string>();
  if (!no_graph.empty()) out << "CUDA graphs: none, because " << no_graph << "\n";
  return out.str();
}

// Prints inputs, outputs, tensors, operators, and whether the file can be trained and evaluated, for `dtrain model
// inspect`; a file that is refused is an error with its cause.
void inspect(int argc, char** argv) {
  fs::path file;
  bool as_json = false;
  for (int i = 2; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--json") {
      as_json = true;
    } else if (file.empty() && !argument.starts_with("-")) {
      file = argument;
    } else {
      throw ConfigError("--inspect: unknown argument " + std::string(argument), kInspectUsage);
    }
  }
  if (file.empty()) throw ConfigError("--inspect needs a file", kInspectUsage);
  if (!fs::is_regular_file(file)) throw ConfigError("there is no file " + file.string(), "name a file of torch.export");
  if (!exported::is_exported_program(file)) {
    throw ConfigError(file.string() + " is no file of torch.export",
                      "save one with torch.export.save(torch.export.export(model, inputs), \"model.pt2\")");
  }
  const Json json = inspect_json(ExportedModel(file));
  std::fputs((as_json ? to_line(json) + "\n" : inspect_text(json)).c_str(), stdout);
}

// Does the work of a command, and prints its error after `name`. Returns the process's exit code: 0; 1 for a file that
// cannot be read or written; 2 for bad input.
int run_command(const char* name, const std::function<void()>& work) {
  try {
    work();
    return static_cast<int>(ExitCode::kDone);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, dtrain::describe(error).c_str());
    const auto* known = dynamic_cast<const Error*>(&error);
    if (known && !known->remedy().empty()) std::fprintf(stderr, "  %s\n", known->remedy().c_str());
    return rank::exit_code_of(error);
  }
}

}  // namespace
}  // namespace dtrain::worker

int main(int argc, char** argv) {
  using namespace dtrain::worker;
  dtrain::prepare_for_limits();
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (command == "--export") {
    return run_command("dtrain-worker", [&] {
      export_checkpoint(parse_export({argv, static_cast<std::size_t>(argc)}));
    });
  }
  if (command == "--inspect") return run_command("dtrain", [&] { inspect(argc, argv); });
  return dtrain::run_trial(argc, argv, make_model_trial, /*for_model=*/true);
}
