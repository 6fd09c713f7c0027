#include "document/document.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>
#include <unordered_map>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"

namespace dtrain::config {
namespace {

constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kMaxValues = 20000;

// The reason why the parsing cannot go on; never leaves this file.
struct Stop {
  int line;
  std::string message;
};

class TreeBuilder final : public YAML::EventHandler {
 public:
  explicit TreeBuilder(std::optional<Location> fixed) : fixed_(fixed) {}

  Value take_root() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1)
      throw Stop{mark.line + 1, "several YAML documents; only one is allowed, without '---' or text after its end"};
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    deliver(begin(mark, Value::Kind::kNull, "", anchor));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { refuse_anchor(mark); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    Value value = begin(mark, Value::Kind::kScalar, tag, anchor);
    value.text = text;
    value.quoted = tag == "!";
    deliver(std::move(value));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(begin(mark, Value::Kind::kList, tag, anchor));
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(begin(mark, Value::Kind::kMap, tag, anchor));
  }
  void OnMapEnd() override { close(); }

 private:
  struct Frame {
    Value value;
    std::optional<Value> key;  // of a map: its value comes next
  };

  [[noreturn]] static void refuse_anchor(const YAML::Mark& mark) {
    throw Stop{mark.line + 1, "anchors (&) and aliases (*) are not supported; write the value out"};
  }

  Value begin(const YAML::Mark& mark, Value::Kind kind, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != 0) refuse_anchor(mark);
    if (!tag.empty() && tag != "?" && tag != "!") {
      throw Stop{mark.line + 1, "tags such as " + quote(tag) + " are not supported; write the plain value"};
    }
    if (++values_ > kMaxValues) throw Stop{mark.line + 1, "more than " + std::to_string(kMaxValues) + " values"};
    Value value;
    value.kind = kind;
    value.at = fixed_ ? *fixed_ : Location{mark.line + 1, false};
    return value;
  }

  void open(Value value) {
    if (stack_.size() >= kMaxDepth) {
      throw Stop{value.at.line, "nested more than " + std::to_string(kMaxDepth) + " levels deep"};
    }
    stack_.push_back({std::move(value), std::nullopt});
  }

  void close() {
    Value value = std::move(stack_.back().value);
    stack_.pop_back();
    deliver(std::move(value));
  }

  void deliver(Value value) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return;
    }
    Frame& frame = stack_.back();
    if (frame.value.kind == Value::Kind::kList) {
      // A missing value has the position of whatever comes after it, which may be past the end of the file.
      if (value.is_null()) value.at = frame.value.items.empty() ? frame.value.at : frame.value.items.back().at;
      frame.value.items.push_back(std::move(value));
    } else if (!frame.key) {
      if (!value.is_scalar()) throw Stop{value.at.line, "a key must be a word, not " + describe(value)};
      if (value.text == "<<" && !value.quoted) {
        throw Stop{value.at.line, "merge keys (<<) are not supported; write the keys out"};
      }
      frame.key = std::move(value);
    } else {
      if (value.is_null()) value.at = frame.key->at;
      frame.value.entries.push_back({std::move(frame.key->text), frame.key->at, std::move(value)});
      frame.key.reset();
    }
  }

  std::optional<Location> fixed_;
  int documents_ = 0;
  std::size_t values_ = 0;
  Value root_;
  std::vector<Frame> stack_;
};

// Puts yaml-cpp's words for the most frequent slips into the user's terms.
std::string explain(const std::string& message) {
  if (message == "illegal map value") {
    return "a key where none can be; is the line indented like its neighbours, and is text that holds ': ' in quotes?";
  }
  if (message == "end of map not found") return "a line that is neither 'key: value' nor indented like its neighbours";
  if (message == "end of sequence flow not found") return "a list opened with '[' is not closed";
  if (message == "end of map flow not found") return "a mapping opened with '{' is not closed";
  return message;
}

// Refuses characters that yaml-cpp would read differently from what the eye sees, or take for the end of the file.
void check_characters(const std::string& text) {
  int line = 0;
  std::string_view rest = text;
  while (!rest.empty()) {
    ++line;
    const auto end = rest.find('\n');
    const std::string_view current = rest.substr(0, end);
    if (!is_valid_utf8(current)) throw Stop{line, "not valid UTF-8 text"};
    for (std::size_t i = 0; i < current.size(); ++i) {
      const auto letter = static_cast<unsigned char>(current[i]);
      const bool line_end = letter == '\r' && i + 1 == current.size();
      if ((letter < 0x20 && letter != '\t' && !line_end) || letter == 0x7F) {
        throw Stop{line, "a control character (byte " + std::to_string(letter) + ") is not allowed"};
      }
    }
    const std::string_view indentation = current.substr(0, current.find_first_not_of(" \t"));
    const bool blank = indentation.size() == current.size() || current[indentation.size()] == '#';
    if (!blank && indentation.find('\t') != std::string_view::npos) {
      throw Stop{line, "a tab in the indentation; use spaces"};
    }
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
}

void find_duplicates(const Value& value, const std::string& path, Collector& collector) {
  std::unordered_map<std::string_view, const Entry*> first;
  for (const Entry& entry : value.entries) {
    const std::string key = join_path(path, entry.key);
    const auto [earlier, is_new] = first.try_emplace(entry.key, &entry);
    if (!is_new) {
      collector.add(entry.at, key, "given twice; the first is on line " + std::to_string(earlier->second->at.line));
    }
    find_duplicates(entry.value, key, collector);
  }
  for (const Value& item : value.items) find_duplicates(item, path, collector);
}

Entry& find_or_add(Value& map, const std::string& key, Location at) {
  if (Entry* entry = map.find(key)) return *entry;
  map.entries.push_back({key, at, Value{Value::Kind::kNull, false, at, {}, {}, {}}});
  return map.entries.back();
}

void apply(const std::string& override_text, Location at, Value& root, Collector& collector,
           std::span<const std::string> lengths) {
  const auto equals = override_text.find('=');
  const std::string path = override_text.substr(0, equals);
  const std::vector<std::string> keys = split(path, '.');
  const bool has_empty_key = std::any_of(keys.begin(), keys.end(), [](const auto& key) { return key.empty(); });
  if (equals == std::string::npos || has_empty_key) {
    return collector.add(at, "", quote(override_text) + " is not of the form key=value or section.key=value");
  }
  std::optional<Value> value = parse_yaml(override_text.substr(equals + 1), collector, at, path);
  if (!value) return;

  Value* map = &root;
  std::string section;
  for (std::size_t level = 0; level < keys.size(); ++level) {
    if (map->is_null()) {
      map->kind = Value::Kind::kMap;
      map->at = at;
    }
    if (!map->is_map()) {
      return collector.add(at, path, "cannot be set: '" + section + "' is " + describe(*map) + ", not a mapping");
    }
    const bool last = level + 1 == keys.size();
    if (last && std::find(lengths.begin(), lengths.end(), section) != lengths.end()) map->entries.clear();
    Entry& entry = find_or_add(*map, keys[level], at);
    section = join_path(section, keys[level]);
    map = &entry.value;
    if (last) entry.at = at;
  }
  *map = std::move(*value);
}

std::string read_pipe(const std::filesystem::path& file) {
  std::ifstream pipe(file, std::ios::binary);
  if (!pipe) throw SystemError("cannot read " + file.string(), errno);
  std::string text(kMaxFileBytes + 1, '\0');
  pipe.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(pipe.gcount()));
  if (text.size() > kMaxFileBytes) throw DataError(file.string() + " is too long");
  return text;
}

}  // namespace

std::optional<Value> parse_yaml(const std::string& text, Collector& collector, std::optional<Location> fixed,
                                const std::string& path) {
  const auto refuse = [&](int line, const std::string& message) {
    collector.add(fixed ? *fixed : Location{line, false}, path, message);
    return std::nullopt;
  };
  TreeBuilder builder(fixed);
  try {
    check_characters(text);
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const Stop& stop) {
    return refuse(stop.line, stop.message);
  } catch (const YAML::Exception& error) {
    return refuse(error.mark.line + 1, "not valid YAML: " + explain(error.msg));
  }
  Value root = builder.take_root();
  find_duplicates(root, path, collector);
  return root;
}

std::string read_text(const std::filesystem::path& file, const std::string& what, Collector& collector) {
  // A shell that reads <(command) gives the program a pipe under this name.
  const bool is_pipe = file.string().starts_with("/dev/fd/") || file == "/dev/stdin";
  try {
    return is_pipe ? read_pipe(file) : read_file(file, kMaxFileBytes);
  } catch (const SystemError& error) {
    collector.add({}, "", "cannot be read: " + std::generic_category().message(error.code()));
  } catch (const DataError&) {
    std::error_code code;
    const bool is_file = is_pipe || std::filesystem::is_regular_file(file, code);
    collector.add(
        {}, "", is_file ? "larger than 1 MiB, which no " + what + " file is" : "a pipe, a device or a folder, no file");
  }
  collector.throw_if_any();
  return {};
}

Value parse_document(const std::string& text, Collector& collector) {
  std::optional<Value> document = parse_yaml(text, collector);
  if (document && !document->is_map()) {
    const Location at{std::max(document->at.line, 1), false};
    const std::string message = document->is_null()
                                    ? "the file is empty; it must hold a mapping of keys to values"
                                    : "the file must hold a mapping of keys to values, not " + describe(*document);
    collector.add(at, "", message);
    document.reset();
  }
  if (!document) collector.throw_if_any();
  return std::move(*document);
}

void apply_overrides(std::span<const std::string> overrides, Value& root, Collector& collector,
                     std::span<const std::string> lengths) {
  int number = 0;
  for (const std::string& text : overrides) apply(text, Location{++number, true}, root, collector, lengths);
}

}  // namespace dtrain::config
