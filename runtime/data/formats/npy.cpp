#include "dtrain/data/npy.h"

#include <string>

#include "array_files.h"
#include "dtrain/data/formats.h"
#include "dtrain/data/in_memory.h"
#include "formats/npy_header.h"
#include "source_files.h"

namespace dtrain::data {

namespace {

Field field(const std::string& name, const NpyHeader& header) {
  return {name, header.type, {header.shape.begin() + 1, header.shape.end()}};
}

void read_array(ByteSource& file, const NpyHeader& header, std::span<std::byte> into) {
  file.read_all(into, ": " + promise(header));
  file.expect_end(promise(header));
}

struct OpenArray {
  ArrayFiles::Array array;
  NpyHeader header;
};

// Opens an array that stays in the file.
OpenArray open_array(const char* name, const std::filesystem::path& path) {
  ByteSource source(path);
  const NpyHeader header = read_npy_header(source);
  if (source.compressed()) {
    source.fail(0, "the file is gzip data, which cannot be read in place",
                "decompress it, or read it into memory (data.in_memory: always)");
  }
  const std::uint64_t offset = source.offset();
  return {{std::make_shared<const DataFile>(path), offset, field(name, header)}, header};
}

void expect_same_count(const OpenArray& features, const OpenArray& target) {
  const std::int64_t count = features.header.shape.front();
  if (target.header.shape.front() == count) return;
  target.array.file->fail(target.header.shape_at,
                          std::to_string(target.header.shape.front()) + " samples, but " +
                              features.array.file->path().string() + " has (at its offset " +
                              std::to_string(features.header.shape_at) + ") " + std::to_string(count),
                          "are both files of the same data set?");
}

// True if a pair of files stays on the disk: by sizes alone, for the same order of samples on every machine.
bool reads_in_place(const Npy& settings, const std::filesystem::path& features, const std::filesystem::path& target) {
  if (settings.in_memory != InMemory::kAuto) return settings.in_memory == InMemory::kNever;
  std::uint64_t bytes = 0;
  for (const auto& path : {features, target}) {
    if (ByteSource(path).compressed()) return false;
    bytes += DataFile(path).size();
  }
  return bytes > kMostInMemory;
}

SharedMemory load_npy_pair(const std::filesystem::path& features_path, const std::filesystem::path& target_path) {
  ByteSource features(features_path);
  ByteSource target(target_path);
  const auto features_header = read_npy_header(features);
  const auto target_header = read_npy_header(target);
  const auto count = features_header.shape.front();
  if (count != target_header.shape.front()) {
    target.fail(target_header.shape_at,
                std::to_string(target_header.shape.front()) + " samples, but " + features_path.string() +
                    " has (at its offset " + std::to_string(features_header.shape_at) + ") " + std::to_string(count),
                "are both files of the same data set?");
  }
  auto dataset = InMemoryDataset::allocate("dtrain-npy", count,
                                           {field("features", features_header), field("target", target_header)});
  read_array(features, features_header, dataset.column(0));
  read_array(target, target_header, dataset.column(1));
  return std::move(dataset).release();
}

}  // namespace

std::shared_ptr<Dataset> load_npy(const std::filesystem::path& features, const std::filesystem::path& target,
                                  const HostShare& share) {
  const auto name = "npy:" + features.string() + ":" + target.string();
  return std::make_shared<InMemoryDataset>(share(name, [&] { return load_npy_pair(features, target); }));
}

std::shared_ptr<Dataset> open_npy(const std::filesystem::path& features, const std::filesystem::path& target) {
  const OpenArray first = open_array("features", features), second = open_array("target", target);
  expect_same_count(first, second);
  return std::make_shared<ArrayFiles>(first.header.shape.front(), std::vector{first.array, second.array});
}

std::shared_ptr<Dataset> Npy::open(const Source& source, const HostShare& share) const {
  return open_files(source, kSource, [&](const Source& one) {
    const std::filesystem::path features = one.at("features"), target = one.at("target");
    return reads_in_place(*this, features, target) ? open_npy(features, target) : load_npy(features, target, share);
  });
}

}  // namespace dtrain::data
