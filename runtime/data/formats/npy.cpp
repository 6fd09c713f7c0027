#include "dtrain/data/npy.h"

#include <string>

#include "dtrain/data/formats.h"
#include "dtrain/data/in_memory.h"
#include "formats/npy_header.h"

namespace dtrain::data {

namespace {

Field field(const std::string& name, const NpyHeader& header) {
  return {name, header.type, {header.shape.begin() + 1, header.shape.end()}};
}

void read_array(ByteSource& file, const NpyHeader& header, std::span<std::byte> into) {
  file.read_all(into, ": " + promise(header));
  file.expect_end(promise(header));
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

std::shared_ptr<Dataset> Npy::open(const Source& source, const HostShare& share) const {
  return load_npy(source.at("features"), source.at("target"), share);
}

}  // namespace dtrain::data
