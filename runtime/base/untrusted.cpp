#include "dtrain/base/untrusted.h"

#include <cerrno>
#include <cstring>
#include <unordered_map>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtrain/base/text.h"

namespace dtrain {
namespace {

const char* kind_of(mode_t mode) {
  return S_ISFIFO(mode)   ? "a pipe"
         : S_ISSOCK(mode) ? "a socket"
         : S_ISDIR(mode)  ? "a folder"
         : S_ISCHR(mode)  ? "a device"
         : S_ISBLK(mode)  ? "a device"
                          : "something else";
}

void check_regular(const std::filesystem::path& path, const struct stat& info, std::uint64_t most_bytes) {
  if (!S_ISREG(info.st_mode)) throw DataError(path.string() + " is " + kind_of(info.st_mode) + ", not a file");
  const auto bytes = static_cast<std::uint64_t>(info.st_size);
  if (bytes <= most_bytes) return;
  throw DataError(path.string() + " is " + std::to_string(bytes) + " bytes long, more than the " +
                  std::to_string(most_bytes) + " bytes allowed here");
}

[[noreturn]] void cannot_read(const std::filesystem::path& path, int code) {
  throw SystemError("cannot read " + path.string(), code,
                    code == EMFILE || code == ENFILE ? "raise the limit of open files (ulimit -n)" : "");
}

constexpr std::size_t kMostMembers = 16'384;
constexpr std::size_t kMostDepth = 100;
constexpr std::size_t kLongestReason = 160;  // the parser repeats what it has read

// Builds the value from the parser's calls. An object of many members has an index of its keys.
class JsonBuilder {
 public:
  Json take() { return std::move(root_); }
  const std::string& problem() const { return problem_; }
  bool cut_off() const { return cut_off_; }
  void look_at(std::string_view text) { text_ = text; }

  bool null() { return put(Json(nullptr)) != nullptr; }
  bool boolean(bool value) { return put(Json(value)) != nullptr; }
  bool number_integer(Json::number_integer_t value) { return put(Json(value)) != nullptr; }
  bool number_unsigned(Json::number_unsigned_t value) { return put(Json(value)) != nullptr; }
  bool number_float(Json::number_float_t value, const std::string&) { return put(Json(value)) != nullptr; }
  bool string(std::string& value) { return put(Json(std::move(value))) != nullptr; }
  bool binary(Json::binary_t&) { return false; }  // JSON as text has none
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    Level& level = levels_.back();
    auto& members = level.value->get_ref<Json::object_t&>();
    if (const auto before = find(level, members, name)) {
      level.member = *before;
      return true;
    }
    if (members.size() == kMostMembers) {
      problem_ = "JSON with an object of more than " + std::to_string(kMostMembers) + " members";
      return false;
    }
    level.member = members.size();
    if (level.is_indexed) level.index.emplace(name, level.member);
    members.emplace_back(std::move(name), Json());
    return true;
  }

  bool parse_error(std::size_t byte, const std::string&, const nlohmann::detail::exception& error) {
    std::string reason = json_reason(error);
    if (const auto place = reason.find(": "); reason.starts_with("parse error at ") && place != std::string::npos) {
      reason.erase(0, place + 2);
    }
    if (reason.size() > kLongestReason) {
      std::size_t end = kLongestReason;
      while (end > 0 && (static_cast<unsigned char>(reason[end]) & 0xC0U) == 0x80U) --end;
      reason.resize(end);
      reason += " ...";
    }
    problem_ = "not valid JSON at byte " + std::to_string(byte) + ": " + reason;
    cut_off_ = byte > text_.size();
    return false;
  }

 private:
  struct Level {
    Json* value;
    std::size_t member = 0;  // of an object: whose value comes next
    bool is_indexed = false;
    std::unordered_map<std::string, std::size_t> index{};
  };

  static std::optional<std::size_t> find(Level& level, const Json::object_t& members, const std::string& name) {
    constexpr std::size_t kFew = 16;
    if (!level.is_indexed && members.size() >= kFew) {
      level.is_indexed = true;
      for (std::size_t i = 0; i < members.size(); ++i) level.index.emplace(members.data()[i].first, i);
    }
    if (level.is_indexed) {
      const auto found = level.index.find(name);
      return found == level.index.end() ? std::nullopt : std::optional(found->second);
    }
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (members.data()[i].first == name) return i;
    }
    return std::nullopt;
  }

  Json* put(Json value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Level& level = levels_.back();
    if (level.value->is_array()) {
      auto& items = level.value->get_ref<Json::array_t&>();
      items.push_back(std::move(value));
      return &items.back();
    }
    Json& member = level.value->get_ref<Json::object_t&>().data()[level.member].second;
    member = std::move(value);
    return &member;
  }

  bool open(Json empty) {
    if (levels_.size() == kMostDepth) {
      problem_ = "JSON with more than " + std::to_string(kMostDepth) + " values inside each other";
      return false;
    }
    Json* const value = put(std::move(empty));
    levels_.push_back({value});
    return true;
  }

  bool close() {
    levels_.pop_back();
    return true;
  }

  Json root_;
  std::vector<Level> levels_;
  std::string problem_;
  std::string_view text_;
  bool cut_off_ = false;
};

unsigned type_of(const Json& value) {
  return value.is_string()           ? KnownMember::kText
         : value.is_number_integer() ? KnownMember::kInteger
         : value.is_number()         ? KnownMember::kNumber
         : value.is_boolean()        ? KnownMember::kTruth
         : value.is_array()          ? KnownMember::kList
         : value.is_object()         ? KnownMember::kObject
                                     : KnownMember::kNull;
}

constexpr std::pair<unsigned, const char*> kTypeNames[] = {
    {KnownMember::kText, "a text"},     {KnownMember::kInteger, "a whole number"},
    {KnownMember::kNumber, "a number"}, {KnownMember::kTruth, "true or false"},
    {KnownMember::kList, "a list"},     {KnownMember::kObject, "an object"},
    {KnownMember::kNull, "null"},
};

std::string names_of(unsigned types) {
  std::vector<std::string> names;
  for (const auto& [type, name] : kTypeNames) {
    const bool is_part = type == KnownMember::kInteger && (types & KnownMember::kNumber) != 0;
    if ((types & type) != 0 && !is_part) names.emplace_back(name);
  }
  return join(names, " or ");
}

}  // namespace

UniqueFd open_regular(const std::filesystem::path& path, std::uint64_t most_bytes) {
  // To open a device may have an effect (a watchdog, a tape), so it is looked at first. It may be exchanged in between.
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) cannot_read(path, errno);
  check_regular(path, info, most_bytes);
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd || ::fstat(fd.get(), &info) != 0) cannot_read(path, errno);
  check_regular(path, info, most_bytes);
  return fd;
}

std::string json_reason(const std::exception& error) {
  std::string reason = error.what();  // opens with the library's name and a number in brackets
  if (const auto bracket = reason.find("] "); bracket != std::string::npos) reason.erase(0, bracket + 2);
  return reason;
}

FileLines::FileLines(UniqueFd fd, std::size_t chunk) : fd_(std::move(fd)), chunk_(chunk), buffer_(chunk + kPadding) {}

bool FileLines::next(std::string_view& line, bool& cut_off) {
  for (std::size_t searched = begin_;;) {
    const char* const found = static_cast<const char*>(std::memchr(buffer_.data() + searched, '\n', end_ - searched));
    if (found != nullptr || (at_end_ && begin_ < end_)) {
      cut_off = found == nullptr;
      const std::size_t stop = cut_off ? end_ : static_cast<std::size_t>(found - buffer_.data());
      line = {buffer_.data() + begin_, stop - begin_};
      begin_ = cut_off ? stop : stop + 1;
      ++number_;
      return true;
    }
    if (at_end_) return false;
    if (end_ - begin_ > kLongestLine) {
      too_long_ = at_end_ = true;
      begin_ = end_ = 0;
      return false;
    }
    searched = end_ - begin_;
    refill();
  }
}

void FileLines::refill() {
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  if (buffer_.size() < end_ + chunk_ + kPadding) buffer_.resize(2 * buffer_.size() + chunk_);
  const ssize_t got = TEMP_FAILURE_RETRY(::read(fd_.get(), buffer_.data() + end_, chunk_));
  if (got < 0) throw SystemError("cannot read after line " + std::to_string(number_), errno);
  if (got == 0) at_end_ = true;
  end_ += static_cast<std::size_t>(got);
}

Json parse_untrusted(std::string_view text) {
  JsonBuilder builder;
  builder.look_at(text);
  if (Json::sax_parse(text.begin(), text.end(), &builder)) return builder.take();
  throw JsonError(builder.problem(), builder.cut_off());
}

std::optional<Json> parse_if_valid(std::string_view text) {
  try {
    return parse_untrusted(text);
  } catch (const JsonError&) {
    return std::nullopt;
  }
}

std::vector<std::string> take_out_wrong_members(Json& object, std::span<const KnownMember> members) {
  std::vector<std::string> problems;
  for (const KnownMember& known : members) {
    Json* parent = &object;
    std::string_view rest = known.path;
    for (std::size_t dot; parent != nullptr && (dot = rest.find('.')) != std::string_view::npos;) {
      const auto found = parent->find(std::string(rest.substr(0, dot)));
      parent = found != parent->end() && found->is_object() ? &*found : nullptr;
      rest.remove_prefix(dot + 1);
    }
    if (parent == nullptr) continue;
    const auto found = parent->find(std::string(rest));
    if (found == parent->end()) continue;
    const unsigned allowed = known.types | ((known.types & KnownMember::kNumber) != 0 ? KnownMember::kInteger : 0u);
    const unsigned type = type_of(*found);
    if ((allowed & type) != 0) continue;
    problems.push_back('"' + std::string(known.path) + "\" is " + names_of(type) + ", not " + names_of(known.types));
    parent->erase(found);
  }
  return problems;
}

}  // namespace dtrain
