#include "worker/forward_error.h"

#include <optional>
#include <regex>
#include <sstream>
#include <vector>

#include <caffe2/serialize/inline_container.h>

#include "dtrain/base/text.h"

namespace dtrain::worker {

namespace {

// std::regex recurses once per character, so longer lines of the model's text are not matched.
constexpr std::size_t kLongestLine = 4096;

// One call of the traceback.
struct Frame {
  std::string source;    // the record of the archive: "code/__torch__/net.py"
  std::size_t line = 0;  // line of `source`, from 1
  std::string callee;    // "fc1" of the marked "(fc1).forward(x, )"; empty: a function or an operator
};

// Reads the traceback of the serialized code, which has one form for scripted and for traced models.
std::vector<Frame> frames_of(const std::string& message) {
  static const std::regex file_line(R"re(^  File "(code/[^"]+)", line (\d+), in .*)re");
  static const std::regex call(R"re(^\(?(\w+)\)\.\w+.*)re");
  std::vector<Frame> frames;
  std::string code;
  for (const std::string& line : split(message, '\n')) {
    std::smatch match;
    if (line.starts_with("Traceback of TorchScript, original code")) break;
    if (line.size() <= kLongestLine && std::regex_match(line, match, file_line)) {
      frames.push_back({match[1], static_cast<std::size_t>(std::stoul(match[2])), {}});
    } else if (const auto mark = line.find('~'); !frames.empty() && line.ends_with("<--- HERE") && mark < code.size()) {
      const std::string marked = code.substr(mark, kLongestLine);
      if (std::regex_match(marked, match, call)) frames.back().callee = match[1];
    }
    code = line;
  }
  return frames;
}

// Returns the attributes, from the module on, to which a local variable of the code refers: after `x = self.body`, `y =
// x.fc` the variable y is {body, fc}. Empty for the module itself.
std::vector<std::string> attributes_of(const std::vector<std::string>& source, std::size_t line, std::string variable) {
  std::vector<std::string> path;
  const std::regex plain(R"re(^\s+(\w+) = (\w+)\.(\w+)$)re");
  const std::regex quoted(R"re(^\s+(\w+) = getattr\((\w+), "([^"]+)"\)$)re");
  for (std::size_t i = std::min(line, source.size()); i-- > 0 && !source[i].starts_with("  def ");) {
    std::smatch match;
    if ((std::regex_match(source[i], match, plain) || std::regex_match(source[i], match, quoted)) &&
        match[1] == variable) {
      path.insert(path.begin(), match[3]);
      variable = match[2];
    }
  }
  return path;
}

std::optional<torch::jit::Module> child(const torch::jit::Module& module, const std::string& name) {
  for (const auto& item : module.named_children()) {
    if (item.name == name) return item.value;
  }
  return std::nullopt;
}

std::string with_parameters(const std::string& path, const torch::jit::Module& module) {
  std::ostringstream text;
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    text << (text.tellp() > 0 ? ", " : "") << path << (path.empty() ? "" : ".") << item.name << " "
         << item.value.sizes();
  }
  const std::string parameters = text.str();
  if (path.empty()) return parameters;
  return parameters.empty() ? path : path + " (" + parameters + ")";
}

}  // namespace

std::string torch_cause(const std::string& message) {
  // The last traceback is followed by "RuntimeError: MESSAGE", or by the class that the model's code raised.
  static const std::regex raised(R"re(^[A-Za-z_][\w.]*: (.+)$)re");
  const auto last_mark = message.rfind("<--- HERE");
  if (last_mark != std::string::npos) {
    for (const std::string& line : split(message.substr(last_mark), '\n')) {
      std::smatch match;
      const std::string start = line.substr(0, kLongestLine);
      if (std::regex_match(start, match, raised)) return match[1];
    }
  }
  return split(message, '\n').front();
}

std::string failed_submodule(const std::string& message, const torch::jit::Module& script,
                             const std::filesystem::path& file) {
  try {
    caffe2::serialize::PyTorchStreamReader reader(file.string());
    torch::jit::Module module = script;
    std::string path;
    for (const Frame& frame : frames_of(message)) {
      if (frame.callee.empty()) continue;
      const auto [data, size] = reader.getRecord(frame.source);
      const auto source = split({static_cast<const char*>(data.get()), size}, '\n');
      for (const std::string& name : attributes_of(source, frame.line, frame.callee)) {
        const auto next = child(module, name);
        if (!next) return with_parameters(path, module);
        module = *next;
        path += (path.empty() ? "" : ".") + name;
      }
    }
    return with_parameters(path, module);
  } catch (const std::exception&) {
    return {};  // the file has changed since loading; the message goes without the submodule
  }
}

}  // namespace dtrain::worker
