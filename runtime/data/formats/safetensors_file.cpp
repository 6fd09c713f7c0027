#include <algorithm>
#include <array>
#include <bit>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "data_file.h"
#include "dtrain/base/text.h"
#include "dtrain/base/untrusted.h"
#include "dtrain/data/safetensors.h"

namespace dtrain::data {
namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors are little-endian; so is every machine we run on");

// The project's ordered Json is not used: it searches an object from its front, which takes for ever with a header of a
// million names.
using SortedJson = nlohmann::json;

constexpr std::uint64_t kLongestHeader = 100'000'000;  // the format's own limit
constexpr std::uint64_t kHeaderAt = sizeof(std::uint64_t);
constexpr int kDeepest = 3;  // {"name": {"shape": [1]}}

struct TypeSize {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array kTypeSizes{
    TypeSize{"F32", 4},  TypeSize{"F64", 8},     TypeSize{"F16", 2},     TypeSize{"BF16", 2},
    TypeSize{"I64", 8},  TypeSize{"I32", 4},     TypeSize{"I16", 2},     TypeSize{"I8", 1},
    TypeSize{"U64", 8},  TypeSize{"U32", 4},     TypeSize{"U16", 2},     TypeSize{"U8", 1},
    TypeSize{"BOOL", 1}, TypeSize{"F8_E4M3", 1}, TypeSize{"F8_E5M2", 1}, TypeSize{"C64", 8}};

// Parses the header. Refuses repeated names and excessive depth while parsing, before they take memory.
SortedJson parse(const DataFile& file, std::string_view text) {
  std::set<std::string> names;
  const auto watch = [&](int depth, SortedJson::parse_event_t event, SortedJson& value) {
    if (depth > kDeepest) file.fail(kHeaderAt, "the header is nested too deeply");
    if (event == SortedJson::parse_event_t::key && depth == 1 && !names.insert(value.get<std::string>()).second) {
      file.fail(kHeaderAt, "tensor '" + value.get<std::string>() + "' is there twice");
    }
    return true;
  };
  try {
    return SortedJson::parse(text, watch);
  } catch (const SortedJson::parse_error& error) {
    file.fail(kHeaderAt + (error.byte > 0 ? error.byte - 1 : 0), "the header is not valid JSON: " + json_reason(error));
  } catch (const SortedJson::exception& error) {  // such as a number beyond a double's range
    file.fail(kHeaderAt, "the header is not valid JSON: " + json_reason(error));
  }
}

class EntryReader {
 public:
  EntryReader(const DataFile& file, std::uint64_t data_at) : file_(file), data_at_(data_at) {}

  SafetensorsEntry read(const std::string& name, const SortedJson& json) const {
    SafetensorsEntry entry{name, {}, {}, 0, 0};
    const auto& dtype = member(name, json, "dtype");
    const auto known = std::find_if(kTypeSizes.begin(), kTypeSizes.end(),
                                    [&](const TypeSize& type) { return dtype.is_string() && dtype == type.name; });
    if (known == kTypeSizes.end()) fail(name, "has the unknown type " + text_of(dtype));
    entry.dtype = known->name;

    std::uint64_t needed = known->bytes;
    bool empty = false;
    const auto& shape = member(name, json, "shape");
    if (!shape.is_array()) fail(name, "has " + text_of(shape) + " where its shape belongs");
    for (const auto& extent : shape) {
      entry.shape.push_back(static_cast<std::int64_t>(whole_number(name, extent)));
      empty |= entry.shape.back() == 0;
      const auto factor = static_cast<std::uint64_t>(std::max<std::int64_t>(entry.shape.back(), 1));
      if (entry.shape.back() < 0 || __builtin_mul_overflow(needed, factor, &needed)) {
        fail(name, "has an impossible shape");
      }
    }
    if (empty) needed = 0;

    const auto& offsets = member(name, json, "data_offsets");
    if (!offsets.is_array() || offsets.size() != 2) fail(name, "has data_offsets that are not two numbers");
    const auto begin = whole_number(name, offsets[0]);
    const auto end = whole_number(name, offsets[1]);
    const auto available = file_.size() - data_at_;
    if (end < begin || end > available || end - begin != needed) {
      fail(name, "lies at bytes " + std::to_string(begin) + " to " + std::to_string(end) + " of " +
                     std::to_string(available) + ", its shape needs " + std::to_string(needed));
    }
    entry.offset = data_at_ + begin;
    entry.bytes = needed;
    return entry;
  }

 private:
  [[noreturn]] void fail(const std::string& name, const std::string& what) const {
    file_.fail(kHeaderAt, "tensor '" + name + "' " + what);
  }
  static std::string text_of(const SortedJson& value) {
    return value.dump(-1, ' ', false, SortedJson::error_handler_t::replace).substr(0, 80);
  }
  const SortedJson& member(const std::string& name, const SortedJson& json, const char* key) const {
    const auto found = json.is_object() ? json.find(key) : json.end();
    if (!json.is_object() || found == json.end()) fail(name, std::string("has no ") + key);
    return *found;
  }
  std::uint64_t whole_number(const std::string& name, const SortedJson& value) const {
    if (!value.is_number_unsigned()) fail(name, "has " + text_of(value) + " where a whole number belongs");
    return value.get<std::uint64_t>();
  }

  const DataFile& file_;
  std::uint64_t data_at_;  // offset of the first tensor
};

std::map<std::string, std::string> read_metadata(const DataFile& file, const SortedJson& metadata) {
  const bool texts = metadata.is_object() && std::all_of(metadata.begin(), metadata.end(),
                                                         [](const SortedJson& value) { return value.is_string(); });
  if (!texts) file.fail(kHeaderAt, "__metadata__ is not a map from text to text");
  return metadata.get<std::map<std::string, std::string>>();
}

// Checks that the tensors cover every byte exactly once, which the format requires.
void check_coverage(const DataFile& file, const std::vector<SafetensorsEntry>& entries, std::uint64_t data_at) {
  auto covered = data_at;
  const auto unowned = [&](std::uint64_t until) {
    file.fail(covered, std::to_string(until - covered) + " bytes belong to no tensor");
  };
  for (const auto& entry : entries) {
    if (entry.offset < covered) file.fail(entry.offset, "tensor '" + entry.name + "' and the one before it overlap");
    if (entry.offset > covered) unowned(entry.offset);
    covered = entry.offset + entry.bytes;
  }
  if (covered != file.size()) unowned(file.size());
}

std::string read_header_text(const DataFile& file) {
  std::uint64_t length = 0;
  if (file.read_at(0, std::as_writable_bytes(std::span(&length, 1))) < sizeof length) {
    file.fail(file.size(), "truncated: the file ends here, inside its header's length");
  }
  if (length > file.size() - kHeaderAt) {
    file.fail(0, "its header's length, " + std::to_string(length) + ", is past the end", "is it a safetensors file?");
  }
  if (length > kLongestHeader) {
    file.fail(0, "its header's length, " + std::to_string(length) + ", is over the format's limit of " +
                     std::to_string(kLongestHeader));
  }
  std::string text(length, '\0');
  if (const auto got = file.read_at(kHeaderAt, std::as_writable_bytes(std::span(text))); got < length) {
    file.fail(kHeaderAt + got, "truncated: the file ends here, inside its header");
  }
  if (!text.starts_with('{')) {
    file.fail(kHeaderAt, "its header does not begin with '{'", "is it a safetensors file?");
  }
  return text;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(std::make_unique<DataFile>(path)) {
  const auto text = read_header_text(*file_);
  const auto data_at = kHeaderAt + text.size();
  const EntryReader reader(*file_, data_at);
  const auto header = parse(*file_, text);
  for (const auto& [name, json] : header.items()) {
    if (name == "__metadata__") {
      metadata_ = read_metadata(*file_, json);
    } else {
      entries_.push_back(reader.read(name, json));
    }
  }
  std::sort(entries_.begin(), entries_.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  check_coverage(*file_, entries_, data_at);
}

SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;

const SafetensorsEntry& SafetensorsFile::at(const std::string& name) const {
  constexpr std::size_t kMostNames = 20;
  std::vector<std::string> names;
  for (const auto& entry : entries_) {
    if (entry.name == name) return entry;
    names.push_back(entry.name);
  }
  const auto similar = nearest(name, names);
  if (names.size() > kMostNames) {
    const auto more = names.size() - kMostNames;
    names.resize(kMostNames);
    names.push_back("and " + std::to_string(more) + " more");
  }
  fail(kHeaderAt,
       "there is no tensor '" + name + "'; there " + (names.empty() ? "are none" : "are: " + join(names, ", ")),
       similar ? "did you mean '" + *similar + "'?" : "name one of them");
}

void SafetensorsFile::read(const SafetensorsEntry& entry, std::span<std::byte> into) const {
  if (const auto got = file_->read_at(entry.offset, into.first(entry.bytes)); got < entry.bytes) {
    fail(entry.offset + got, "truncated: the file ends here, inside tensor '" + entry.name + "'");
  }
}

void SafetensorsFile::fail(std::uint64_t offset, const std::string& what, const std::string& remedy) const {
  file_->fail(offset, what, remedy);
}

std::string safetensors_header(std::span<const SafetensorsEntry> tensors, const Json& metadata, std::size_t alignment) {
  std::string text = "{";
  const auto add = [&](const std::string& name, const Json& value) {
    if (text.size() > 1) text += ',';
    text += to_line(Json(name)) + ":" + to_line(value);
  };
  if (!metadata.empty()) add("__metadata__", metadata);
  std::uint64_t end = 0;
  for (const SafetensorsEntry& entry : tensors) {
    add(entry.name, {{"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {end, end + entry.bytes}}});
    end += entry.bytes;
  }
  text += '}';
  const std::uint64_t length = (kHeaderAt + text.size() + alignment - 1) / alignment * alignment - kHeaderAt;
  text.resize(length, ' ');
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

}  // namespace dtrain::data
