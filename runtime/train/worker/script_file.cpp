#include "worker/script_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string_view>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/serialization/import.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"

namespace dtrain::worker {
namespace {

namespace fs = std::filesystem;
using caffe2::serialize::PyTorchStreamReader;

constexpr auto kHowToMakeModel =
    "make a model file in Python: torch.export.save(torch.export.export(model, inputs), \"model.pt2\") "
    "(docs/exporting.md), or torch.jit.script(model).save(\"model.pt\")";

[[noreturn]] void no_script(const fs::path& file, const std::string& what,
                            const std::string& remedy = kHowToMakeModel) {
  throw ConfigError("model: " + file.string() + " is no TorchScript file: " + what, remedy);
}

std::string first_bytes(const fs::path& file, std::size_t count) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  std::string bytes(count, '\0');
  const ssize_t got = fd ? ::read(fd.get(), bytes.data(), count) : -1;
  if (got < 0) {
    throw ConfigError("model: cannot read " + file.string() + ": " + std::strerror(errno), "make it readable");
  }
  bytes.resize(static_cast<std::size_t>(got));
  return bytes;
}

// Returns "module.name" of the first class in a pickle; empty: the pickle has none.
std::string first_global(std::string_view pickle) {
  const std::size_t start = pickle.find('c', 2);  // after the protocol's two bytes; opcode GLOBAL
  if (start == std::string_view::npos || start > 3) return {};
  const std::size_t middle = pickle.find('\n', start);
  const std::size_t end = middle == std::string_view::npos ? middle : pickle.find('\n', middle + 1);
  if (end == std::string_view::npos) return {};
  return std::string(pickle.substr(start + 1, middle - start - 1)) + "." +
         std::string(pickle.substr(middle + 1, end - middle - 1));
}

[[noreturn]] void explain_pickle(const fs::path& file, std::string_view pickle) {
  const std::string global = first_global(pickle);
  if (global.empty() || global == "collections.OrderedDict" || global.starts_with("torch._utils.")) {
    no_script(file, "it holds tensors by name, as torch.save(model.state_dict(), …) writes them, without the model",
              "build the model in Python, load these weights with load_state_dict(), then "
              "torch.jit.script(model).save(\"model.pt\")");
  }
  no_script(
      file, "it holds a pickled Python object (" + global + "), as torch.save(model, …) writes it",
      "load it in Python with torch.load(…, weights_only=False), then torch.jit.script(model).save(\"model.pt\")");
}

[[noreturn]] void refuse_operator(const fs::path& file, const std::string& name) {
  throw ConfigError("model: " + file.string() + " has code with the operator " + name + ", which reads or writes files",
                    "write this part of the model without it");
}

bool is_word(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_';
}

// Returns the positions behind the word in the code, where it is a whole word.
std::vector<std::size_t> places_of(std::string_view code, std::string_view word) {
  std::vector<std::size_t> places;
  for (std::size_t at = code.find(word); at != std::string_view::npos; at = code.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || !is_word(code[at - 1])) && (end == code.size() || !is_word(code[end]))) places.push_back(at);
  }
  return places;
}

// Refuses code that would read or write files while it is loaded: __setstate__() runs then. check_operators() looks at
// all other code. An attribute or method of the model's own may be called save.
void check_code(const fs::path& file, std::string_view code) {
  if (!places_of(code, "from_file").empty()) refuse_operator(file, "aten::from_file");
  const bool runs_at_once = !places_of(code, "__setstate__").empty();
  for (const std::size_t at : places_of(code, "save")) {
    const std::string_view before = code.substr(0, at);
    if (before.ends_with("torch.") || before.ends_with("aten.") || (runs_at_once && !before.ends_with("def "))) {
      refuse_operator(file, "aten::save");
    }
  }
}

// Refuses an archive whose records take much more memory than the file, and code as above. TorchScript packs its code
// alone; several records may claim one part of the file.
void check_records(const fs::path& file, PyTorchStreamReader& reader) {
  constexpr std::uint64_t kMostPacked = std::uint64_t{64} << 20;
  const std::uint64_t most = 2 * fs::file_size(file) + kMostPacked;
  std::uint64_t bytes = 0;
  const std::vector<std::string> records = reader.getAllRecords();
  for (const std::string& record : records) bytes += reader.getRecordSize(record);
  if (bytes > most) {
    no_script(file, "it unpacks to " + format_bytes(static_cast<double>(bytes)) + ", much more than its size",
              "TorchScript does not pack weights: save the model again with torch.jit.save()");
  }
  for (const std::string& record : records) {
    if (!record.ends_with(".py")) continue;
    const auto [data, size] = reader.getRecord(record);
    check_code(file, {static_cast<const char*>(data.get()), size});
  }
}

void check_operators(const fs::path& file, const torch::jit::Block* block) {
  static const std::array kForbidden{c10::Symbol::fromQualString("aten::from_file"),
                                     c10::Symbol::fromQualString("aten::save")};
  for (const torch::jit::Node* node : block->nodes()) {
    for (const c10::Symbol& forbidden : kForbidden) {
      if (node->kind() == forbidden) refuse_operator(file, forbidden.toQualString());
    }
    for (const torch::jit::Block* inner : node->blocks()) check_operators(file, inner);
  }
}

// Refuses operators that read or write files, wherever the model calls them.
void check_operators(const fs::path& file, const torch::jit::Module& script) {
  for (torch::jit::Function* const function : script._ivalue()->compilation_unit()->get_functions()) {
    torch::jit::GraphFunction* const code = torch::jit::tryToGraphFunction(*function);
    if (code != nullptr) check_operators(file, code->graph()->block());
  }
}

// Throws unless the archive is TorchScript that can be loaded.
void check_archive(const fs::path& file) {
  PyTorchStreamReader reader(file.string());
  if (reader.hasRecord("constants.pkl")) return check_records(file, reader);
  if (reader.hasRecord("data.pkl")) {
    const auto [data, size] = reader.getRecord("data.pkl");
    explain_pickle(file, {static_cast<const char*>(data.get()), size});
  }
  no_script(file, "it is a zip archive without TorchScript code");
}

}  // namespace

torch::jit::Module load_script(const fs::path& file) {
  const std::string head = first_bytes(file, 4);
  if (head.empty()) no_script(file, "it is empty");
  if (head[0] == '\x80') no_script(file, "it is a Python pickle, as old versions of torch.save() write");
  if (head != std::string_view("PK\x03\x04", 4)) no_script(file, "it is no zip archive, which TorchScript files are");
  try {
    check_archive(file);
    torch::jit::Module script = torch::jit::load(file.string(), at::kCPU);
    check_operators(file, script);
    return script;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    no_script(file, first_line(torch_message(error)),
              "it may be damaged or cut off, or use what this libtorch does not know; script it again");
  }
}

void check_devices(const torch::jit::Module& script, const fs::path& file) {
  // Checks the tensors of the module and its submodules, which forward() may use.
  const auto check = [&](const char* kind, const std::string& name, const at::Tensor& tensor) {
    if (tensor.device().is_cpu()) return;
    throw ConfigError("model: " + file.string() + ": " + kind + " '" + name + "' is on device " +
                          tensor.device().str() + ", and dtrain loads models to the CPU first",
                      "in Python, move the model with model.to(\"cpu\") (to_empty(device=\"cpu\") from meta), "
                      "then script and save it again");
  };
  for (const auto& item : script.named_parameters()) check("parameter", item.name, item.value);
  for (const auto& item : script.named_buffers()) check("buffer", item.name, item.value);
}

void check_script(const torch::jit::Module& script, const fs::path& file) {
  check_devices(script, file);
  bool any = false, trainable = false;
  for (const at::Tensor& parameter : script.parameters()) {
    any = true;
    trainable |= parameter.requires_grad();
  }
  if (!trainable) {
    throw ConfigError(
        "model: " + file.string() + " has " + (any ? "no parameter that requires a gradient" : "no parameters"),
        "there is nothing to train: save it before torch.jit.freeze(), with requires_grad_(True) on what "
        "is to be trained");
  }
}

void check_forward(const torch::jit::Module& script, const fs::path& file, const std::vector<std::string>& inputs) {
  const auto forward = script.find_method("forward");
  if (!forward) {
    std::vector<std::string> names;
    for (const auto& method : script.get_methods()) names.push_back(method.name());
    throw ConfigError("model: " + file.string() + " has no method forward()" +
                          (names.empty() ? ", nor any other" : "; its methods are: " + join(names, ", ")),
                      "training calls forward(features): script a module that defines it");
  }
  const auto& schema = forward->function().getSchema();
  const auto& arguments = schema.arguments();
  const auto refuse = [&](const std::string& what, const std::string& remedy) {
    throw ConfigError("model: " + file.string() + ": forward() " + what, remedy);
  };
  const std::size_t given = 1 + inputs.size();  // including self
  if (arguments.size() < 2) refuse("takes no argument", "it is called with the features: def forward(self, x)");
  if (arguments.size() < given) {
    refuse("takes " + std::to_string(arguments.size() - 1) + " arguments, not " + std::to_string(inputs.size()),
           "it is called with " + join_with_and(inputs));
  }
  for (std::size_t i = given; i < arguments.size(); ++i) {
    if (arguments[i].default_value()) continue;
    refuse("needs a value for '" + arguments[i].name() + "' besides '" + arguments[given - 1].name() + "'",
           "it is called with " + join_with_and(inputs) + " alone: give '" + arguments[i].name() +
               "' a default value, or name its tensor in data.more_inputs (safetensors), or switch it on in the "
               "transform " +
               "(tokens: mask, lengths, positions, documents)");
  }
  for (std::size_t i = 1; i < given; ++i) {
    const auto& argument = arguments[i];
    if (c10::TensorType::get()->isSubtypeOf(*argument.type())) continue;
    refuse("takes '" + argument.name() + "' as " + argument.type()->annotation_str() + ", not as a Tensor",
           "it is called with tensors: def forward(self, " + argument.name() + ": torch.Tensor)");
  }
}

std::string torch_message(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error ? torch_error->what_without_backtrace() : error.what();
}

std::string describe(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes() << " " << c10::getDtypeNames(tensor.scalar_type()).first;
  return text.str();
}

}  // namespace dtrain::worker
