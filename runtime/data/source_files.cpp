#include "source_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include <glob.h>

#include "dtrain/base/error.h"
#include "dtrain/base/log.h"
#include "dtrain/base/text.h"

namespace dtrain::data {
namespace {

bool is_same(const Field& a, const Field& b) {
  return a.name == b.name && a.type == b.type && a.shape == b.shape;
}

std::string text_of(const Field& field) {
  std::string text = field.name + " " + name_of(field.type) + " [";
  for (std::size_t i = 0; i < field.shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(field.shape[i]);
  return text + "]";
}

class Concatenated final : public Dataset {
 public:
  explicit Concatenated(std::vector<std::shared_ptr<Dataset>> parts) : parts_(std::move(parts)) {
    for (const auto& part : parts_) {
      const std::vector<Field>& fields = part->fields();
      if (fields.size() != this->fields().size()) throw DataError("the files of a data set differ in their fields");
      for (std::size_t f = 0; f < fields.size(); ++f) {
        if (is_same(fields[f], this->fields()[f])) continue;
        throw DataError("the files of a data set differ: " + text_of(fields[f]) + " in one of them (" + part->where(0) +
                            "), " + text_of(this->fields()[f]) + " in the first",
                        "use files of one type and shape");
      }
      begin_.push_back(begin_.back() + part->size());
    }
  }
  std::int64_t size() const override { return begin_.back(); }
  const std::vector<Field>& fields() const override { return parts_.front()->fields(); }

  void read(std::span<const std::int64_t> samples, std::span<std::byte* const> outputs) const override {
    read_for({}, samples, outputs);
  }
  void read_for(const Pass& pass, std::span<const std::int64_t> samples,
                std::span<std::byte* const> outputs) const override {
    std::vector<std::byte*> own(outputs.begin(), outputs.end());
    std::vector<std::int64_t> of_part;
    for (std::size_t i = 0; i < samples.size();) {
      const std::size_t part = part_of(samples[i]);
      of_part.clear();
      while (i + of_part.size() < samples.size() && is_in(part, samples[i + of_part.size()])) {
        of_part.push_back(samples[i + of_part.size()] - begin_[part]);
      }
      for (std::size_t f = 0; f < own.size(); ++f) own[f] = outputs[f] + i * fields()[f].bytes();
      parts_[part]->read_for(pass, of_part, own);
      i += of_part.size();
    }
  }

  Blocks blocks() const override {
    Blocks all;
    bool any = false;
    for (const auto& part : parts_) {
      Blocks own = part->blocks();
      any = any || !own.samples.empty();
      if (own.samples.empty()) own.samples = {part->size()};
      all.samples.insert(all.samples.end(), own.samples.begin(), own.samples.end());
      all.bytes = std::max(all.bytes, own.bytes);
    }
    return any ? all : Blocks{};
  }
  void will_read(std::int64_t first, std::int64_t count) const override {
    while (count > 0) {
      const std::size_t part = part_of(first);
      const std::int64_t here = std::min(count, begin_[part + 1] - first);
      parts_[part]->will_read(first - begin_[part], here);
      first += here;
      count -= here;
    }
  }
  std::string where(std::int64_t sample) const override {
    const std::size_t part = part_of(sample);
    return parts_[part]->where(sample - begin_[part]);
  }
  std::string where_unread(std::int64_t sample) const override {
    const std::size_t part = part_of(sample);
    return parts_[part]->where_unread(sample - begin_[part]);
  }

 private:
  bool is_in(std::size_t part, std::int64_t sample) const {
    return sample >= begin_[part] && sample < begin_[part + 1];
  }
  std::size_t part_of(std::int64_t sample) const {
    check_index(sample, size());
    return static_cast<std::size_t>(std::upper_bound(begin_.begin(), begin_.end(), sample) - begin_.begin()) - 1;
  }

  std::vector<std::shared_ptr<Dataset>> parts_;
  std::vector<std::int64_t> begin_{0};  // first sample of each part, and the number of samples
};

constexpr std::size_t kMostFiles = 1'000'000;

std::vector<std::string> alternatives_of(const std::string& inside) {
  const auto dots = inside.find("..");
  const auto first = to_number<std::int64_t>(inside.substr(0, dots));
  const auto last = dots == std::string::npos ? std::nullopt : to_number<std::int64_t>(inside.substr(dots + 2));
  if (first && last && *first >= 0 && *last >= 0) {
    std::vector<std::string> numbers;
    for (std::int64_t number = *first; number <= *last && numbers.size() < kMostFiles; ++number) {
      const std::string digits = std::to_string(number);
      numbers.push_back(std::string(dots - std::min(dots, digits.size()), '0') + digits);
    }
    return numbers;
  }
  return split(inside, ',');
}

std::vector<std::string> expanded(const std::string& pattern) {
  const auto open = pattern.find('{');
  const auto close = open == std::string::npos ? open : pattern.find('}', open);
  if (close == std::string::npos) return {pattern};
  std::vector<std::string> all;
  for (const std::string& alternative : alternatives_of(pattern.substr(open + 1, close - open - 1))) {
    for (const std::string& rest : expanded(pattern.substr(close + 1))) {
      all.push_back(pattern.substr(0, open) + alternative + rest);
      if (all.size() > kMostFiles)
        throw DataError(pattern + ": names more than " + std::to_string(kMostFiles) + " files");
    }
  }
  return all;
}

}  // namespace

std::vector<std::filesystem::path> matching_files(const std::string& path) {
  std::error_code code;
  if (path.find_first_of("*?[") == std::string::npos || std::filesystem::exists(path, code)) return {path};
  glob_t found{};
  const int result = ::glob(path.c_str(), GLOB_ERR, nullptr, &found);
  std::vector<std::filesystem::path> files;
  if (result == 0) files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  const int reason = errno;
  ::globfree(&found);
  if (result == GLOB_NOMATCH) {
    throw DataError(path + ": no file matches this pattern", "check the path; * stands for any letters of a name");
  }
  if (result != 0) throw DataError(path + ": the files that match cannot be listed: " + std::strerror(reason));
  std::sort(files.begin(), files.end());  // glob() sorts by the rules of the user's language
  return files;
}

std::shared_ptr<Dataset> concatenated(std::vector<std::shared_ptr<Dataset>> datasets) {
  if (datasets.size() == 1) return std::move(datasets.front());
  return std::make_shared<Concatenated>(std::move(datasets));
}

std::shared_ptr<Dataset> open_files(const Source& source, std::span<const SourceKey> keys,
                                    const std::function<std::shared_ptr<Dataset>(const Source&)>& open) {
  std::map<std::string, std::vector<std::filesystem::path>> files;
  std::size_t count = 1;
  const char* first = nullptr;
  for (const SourceKey& key : keys) {
    if (!key.is_file) continue;
    auto found = matching_files(source.at(key.name));
    if (first && found.size() != count) {
      throw DataError(source.at(first) + " names " + std::to_string(count) + " files, and " + source.at(key.name) +
                          " names " + std::to_string(found.size()),
                      "each file of one key belongs to one of the other, in the order of their names");
    }
    if (!first) first = key.name;
    count = found.size();
    files[key.name] = std::move(found);
  }
  std::vector<std::shared_ptr<Dataset>> parts;
  for (std::size_t i = 0; i < count; ++i) {
    Source part = source;
    for (const auto& [key, paths] : files) part[key] = paths[i].string();
    parts.push_back(open(part));
  }
  return concatenated(std::move(parts));
}

bool is_hidden(const std::filesystem::path& path) {
  return std::any_of(path.begin(), path.end(), [](const std::filesystem::path& part) {
    const std::string name = part.string();
    return name.starts_with('.') && name != "." && name != "..";
  });
}

void LeftOut::add(Some& some, const std::filesystem::path& path) {
  if (some.count++ == 0) some.first = path.string();
}

std::string LeftOut::to_string() const {
  std::string text;
  for (const auto& [some, what] : {std::pair{&hidden_, std::string("hidden")}, std::pair{&other_, what_}}) {
    if (some->count == 0) continue;
    text += (text.empty() ? "" : ", ") + std::to_string(some->count) + " " + what + " (" + some->first +
            (some->count > 1 ? ", …)" : ")");
  }
  return text;
}

void tell_left_out(const std::string& source, const std::string& left_out) {
  if (!left_out.empty()) make_stderr_logger()->info("{}: left out: {}", source, left_out);
}

std::vector<std::filesystem::path> files_named(const std::string& pattern) {
  std::vector<std::filesystem::path> files;
  for (const std::string& path : expanded(pattern)) {
    const auto matching = matching_files(path);  // a missing file is an error when it is opened
    files.insert(files.end(), matching.begin(), matching.end());
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  if (files.empty()) throw DataError(pattern + ": names no file", "check the numbers in its braces");
  return files;
}

ArrayFiles::ArrayFiles(std::int64_t size, std::vector<Array> arrays) : size_(size), arrays_(std::move(arrays)) {
  for (const Array& array : arrays_) {
    fields_.push_back(array.field);
    std::uint64_t bytes = 0, end = 0;
    const bool too_large = __builtin_mul_overflow(array.field.bytes(), static_cast<std::uint64_t>(size_), &bytes) ||
                           __builtin_add_overflow(array.offset, bytes, &end);
    if (!too_large && end <= array.file->size()) continue;
    array.file->fail(array.file->size(), "truncated: the file ends here, but " + std::to_string(size_) +
                                             " samples of " + std::to_string(array.field.bytes()) +
                                             " bytes follow its offset " + std::to_string(array.offset));
  }
}

std::uint64_t ArrayFiles::offset_of(std::size_t array, std::int64_t sample) const {
  return arrays_[array].offset + static_cast<std::uint64_t>(sample) * fields_[array].bytes();
}

void ArrayFiles::read(std::span<const std::int64_t> samples, std::span<std::byte* const> outputs) const {
  for (const std::int64_t sample : samples) check_index(sample, size_);
  for (std::size_t i = 0; i < samples.size();) {
    std::size_t run = 1;  // consecutive samples are read at once
    while (i + run < samples.size() && samples[i + run] == samples[i] + static_cast<std::int64_t>(run)) ++run;
    for (std::size_t a = 0; a < arrays_.size(); ++a) {
      const std::size_t bytes = fields_[a].bytes();
      arrays_[a].file->read_whole(offset_of(a, samples[i]), {outputs[a] + i * bytes, run * bytes});
    }
    i += run;
  }
}

Blocks ArrayFiles::blocks() const {
  std::size_t bytes = 0;
  for (const Field& field : fields_) bytes += field.bytes();
  return even_blocks(size_, static_cast<std::int64_t>(bytes));
}

void ArrayFiles::will_read(std::int64_t first, std::int64_t count) const {
  for (std::size_t a = 0; a < arrays_.size(); ++a) {
    arrays_[a].file->will_read(offset_of(a, first), fields_[a].bytes() * static_cast<std::size_t>(count));
  }
}

std::string ArrayFiles::where(std::int64_t sample) const {
  return arrays_.front().file->path().string() + ", offset " + std::to_string(offset_of(0, sample));
}

}  // namespace dtrain::data
