#include "worker/script_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <string_view>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>
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

void check_archive(const fs::path& file) {
  PyTorchStreamReader reader(file.string());
  if (reader.hasRecord("constants.pkl")) return;
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
    return torch::jit::load(file.string(), at::kCPU);
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
