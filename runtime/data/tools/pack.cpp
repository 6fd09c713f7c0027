#include "dtrain/data/tools.h"

#include <algorithm>
#include <memory>
#include <span>

#include "data_file.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "dtrain/data/epoch_order.h"
#include "dtrain/data/image.h"
#include "tar_archive.h"

namespace dtrain::data {
namespace {

constexpr std::int64_t kProgressEvery = 100;
constexpr std::size_t kDigits = 6;

std::size_t column_of(const std::vector<std::string>& names, const std::string& name, const CsvRows& rows) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) rows.fail("there is no column '" + name + "'", "its columns are " + join(names, ", "));
  return static_cast<std::size_t>(found - names.begin());
}

bool is_number(const std::string& text) {
  return !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == std::string::npos;
}

std::string padded(std::int64_t number, std::size_t digits) {
  const std::string text = std::to_string(number);
  return std::string(digits - std::min(digits, text.size()), '0') + text;
}

std::string read_all(const std::filesystem::path& path) {
  const DataFile file(path);
  std::string content(file.size(), '\0');
  if (file.read_at(0, std::as_writable_bytes(std::span(content))) < content.size()) {
    file.fail(content.size(), "truncated: the file has become shorter while it was read");
  }
  return content;
}

std::string checked(const std::filesystem::path& path, bool decode) {
  std::string content = read_all(path);
  try {
    const auto bytes = std::as_bytes(std::span(content));
    decode ? static_cast<void>(decode_image(bytes)) : static_cast<void>(image_size(bytes));
  } catch (const ImageError& error) {
    throw DataError(path.string() + ": offset " + std::to_string(error.offset()) + ": " + error.what(),
                    "replace the file, or remove it");
  }
  return content;
}

// Replaces letters that a member's key must not have: dots, which end the key, separators and control characters.
std::string as_key(std::string text) {
  for (char& letter : text) {
    if (letter == '.' || letter == '/' || static_cast<unsigned char>(letter) < ' ') letter = '_';
  }
  return text;
}

// Returns the ending by the content: files may be called photo.jfif, or have no ending.
std::string ending_of(std::string_view picture) {
  return picture.starts_with("\xff\xd8") ? ".jpg" : ".png";
}

void remove_shards(const std::filesystem::path& folder, const std::string& name) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    const bool is_shard =
        file.size() == name.size() + kDigits + 5 && file.starts_with(name + "-") && file.ends_with(".tar");
    if (is_shard && is_number(file.substr(name.size() + 1, kDigits))) std::filesystem::remove(entry.path());
  }
}

// Writes shards one after the other. They get their names, and replace old shards, only when all are complete, so that
// an interruption leaves no part that looks like a data set.
class ShardWriter {
 public:
  ShardWriter(std::filesystem::path folder, const PackOptions& options)
      : folder_(std::move(folder)), options_(options) {}

  void add(const std::string& key, const std::string& ending, std::string_view picture, std::int64_t label) {
    if (!writer_) begin();
    writer_->add(key + ending, picture);
    writer_->add(key + ".cls", std::to_string(label));
    ++packed_.samples;
    if (writer_->bytes() >= options_.shard_bytes) end();
  }

  ~ShardWriter() {
    std::error_code ignored;
    for (const std::filesystem::path& part : parts_) std::filesystem::remove(part, ignored);
  }
  ShardWriter& operator=(ShardWriter&&) = delete;

  PackedShards finish() {
    if (writer_) end();
    if (options_.replace) remove_shards(folder_, options_.name);
    for (std::size_t i = 0; i < parts_.size(); ++i) std::filesystem::rename(parts_[i], packed_.shards[i]);
    parts_.clear();
    return std::move(packed_);
  }

 private:
  void begin() {
    const std::filesystem::path name =
        folder_ / (options_.name + "-" + padded(static_cast<std::int64_t>(packed_.shards.size()), kDigits) + ".tar");
    if (!options_.replace && std::filesystem::exists(name)) {
      throw DataError(name.string() + ": is there already", "remove the old shards, or give another --name or folder");
    }
    const std::filesystem::path part = name.string() + ".part";
    std::filesystem::remove(part);
    packed_.shards.push_back(name);
    parts_.push_back(part);
    writer_ = std::make_unique<TarWriter>(part);
  }

  void end() {
    writer_->close();
    packed_.bytes += writer_->bytes();
    writer_.reset();
  }

  const std::filesystem::path folder_;
  const PackOptions& options_;
  std::vector<std::filesystem::path> parts_;  // the unfinished files of packed_.shards
  std::unique_ptr<TarWriter> writer_;
  PackedShards packed_;
};

constexpr const char* kClassesFile = "classes.txt";

// Checks classes.txt. The shards of a folder belong to one data set, so a class must have the same number in all.
void check_classes_beside(const std::filesystem::path& folder, const std::vector<std::string>& classes,
                          const std::string& text) {
  const std::filesystem::path file = folder / kClassesFile;
  if (classes.empty() || !std::filesystem::exists(file)) return;
  const std::string there = read_file(file);
  if (there == text) return;
  const std::vector<std::string> known = split(there, '\n');
  std::string difference = "in another order";
  for (const std::string& name : classes) {
    if (std::find(known.begin(), known.end(), name) == known.end()) difference = "without '" + name + "'";
  }
  for (const std::string& name : known) {
    if (!name.empty() && std::find(classes.begin(), classes.end(), name) == classes.end()) {
      difference = "with '" + name + "', which is missing here";
    }
  }
  throw DataError(
      file.string() + ": the shards there have other classes, " + difference,
      "training and validation need the same classes; pack other data into a folder of its own, or replace what "
      "is there with --force");
}

}  // namespace

ImageFolderFiles read_picture_list(const std::filesystem::path& csv, const std::string& path_column,
                                   const std::string& class_column) {
  CsvRows rows(csv, ',');
  std::vector<std::string> names;
  if (!rows.next(names)) rows.fail("the file has no line");
  const std::size_t path = column_of(names, path_column, rows);
  const std::size_t label = column_of(names, class_column, rows);
  ImageFolderFiles listed;
  std::vector<std::string> classes;
  for (std::vector<std::string> values; rows.next(values);) {
    if (values.size() <= std::max(path, label)) {
      rows.fail("has " + std::to_string(values.size()) + " values, and " + std::to_string(names.size()) +
                " columns are named");
    }
    listed.files.push_back({csv.parent_path() / values[path], 0});
    classes.push_back(values[label]);
  }
  if (listed.files.empty()) throw DataError(csv.string() + ": lists no pictures");
  if (std::all_of(classes.begin(), classes.end(), is_number)) {
    for (std::size_t i = 0; i < classes.size(); ++i) listed.files[i].label = std::stoll(classes[i]);
    return listed;
  }
  listed.classes = classes;
  std::sort(listed.classes.begin(), listed.classes.end());
  listed.classes.erase(std::unique(listed.classes.begin(), listed.classes.end()), listed.classes.end());
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const auto at = std::lower_bound(listed.classes.begin(), listed.classes.end(), classes[i]);
    listed.files[i].label = at - listed.classes.begin();
  }
  return listed;
}

PackedShards pack_pictures(const ImageFolderFiles& pictures, const std::filesystem::path& folder,
                           const PackOptions& options) {
  make_folder(folder);
  const std::string classes = join(pictures.classes, "\n") + "\n";
  if (!options.replace) check_classes_beside(folder, pictures.classes, classes);
  ShardWriter writer(folder, options);
  const auto all = static_cast<std::int64_t>(pictures.files.size());
  if (all == 0) throw DataError("there are no pictures to pack");
  const Permutation order = options.shuffle ? Permutation(all, options.seed, 0) : Permutation(all);
  for (std::int64_t i = 0; i < all; ++i) {
    const ClassifiedFile& file = pictures.files[static_cast<std::size_t>(order.at(i))];
    const auto label = static_cast<std::size_t>(file.label);
    const std::string name = label < pictures.classes.size() ? pictures.classes[label] : std::to_string(file.label);
    const std::string picture = checked(file.path, options.check);
    writer.add(padded(i, 8) + "-" + as_key(name) + "-" + as_key(file.path.stem().string()), ending_of(picture), picture,
               file.label);
    if (options.progress && (i + 1) % kProgressEvery == 0) options.progress(i + 1, all);
  }
  PackedShards packed = writer.finish();
  if (!pictures.classes.empty()) write_file_atomic(folder / kClassesFile, classes);
  return packed;
}

PackedTokens pack_texts(const std::vector<std::filesystem::path>& texts, const std::filesystem::path& file,
                        bool replace) {
  if (!replace && std::filesystem::exists(file))
    throw DataError(file.string() + ": is there already", "give another file");
  std::string tokens;
  const auto add = [&](std::uint16_t token) {
    tokens += static_cast<char>(token & 0xff);
    tokens += static_cast<char>(token >> 8);
  };
  for (const std::filesystem::path& path : texts) {
    const std::string text = read_all(path);
    if (!is_valid_utf8(text)) throw DataError(path.string() + ": is no text in UTF-8");
    for (const char byte : text) add(static_cast<unsigned char>(byte));
    add(kEndOfText);
  }
  write_file_atomic(file, tokens);
  return {static_cast<std::int64_t>(tokens.size() / sizeof(std::uint16_t))};
}

}  // namespace dtrain::data
