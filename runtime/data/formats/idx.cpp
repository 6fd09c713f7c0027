#include "dtrain/data/data_sets.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "data_file.h"
#include "dtrain/base/text.h"
#include "dtrain/data/formats.h"
#include "dtrain/data/in_memory.h"
#include "source_files.h"

namespace dtrain::data {
namespace {

constexpr int kUnsignedByte = 0x08;

struct IdxHeader {
  std::vector<std::int64_t> dimensions;
  std::uint64_t bytes = 0;     // bytes of the header
  std::uint64_t elements = 0;  // number of elements of one byte
};

std::string hex(std::span<const std::byte> bytes) {
  return "0x" + to_hex({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

std::string type_name(int code) {
  constexpr std::array kNames{"signed byte", "unknown", "16-bit integer", "32-bit integer", "float", "double"};
  return code >= 0x09 && code <= 0x0e ? kNames[static_cast<std::size_t>(code - 0x09)] : "unknown";
}

std::string describe_shape(const std::vector<std::int64_t>& dimensions) {
  std::string text;
  for (const auto dimension : dimensions) text += (text.empty() ? "" : " x ") + std::to_string(dimension);
  return text;
}

// Reads and checks the dimensions. Leaves the file at its first element.
IdxHeader read_header(ByteSource& file, bool labels) {
  std::array<std::byte, 4> magic{};
  file.read_all(magic, ", inside the magic number");
  if (magic[0] != std::byte{0} || magic[1] != std::byte{0}) {
    file.fail(0, "magic number " + hex(magic) + ", but an IDX file begins with 0x0000", "is it an IDX file?");
  }
  const int type = std::to_integer<int>(magic[2]);
  if (type != kUnsignedByte) {
    file.fail(2,
              "element type " + hex(std::span(magic).subspan(2, 1)) + " (" + type_name(type) +
                  "), but only 0x08 (unsigned byte) is read",
              "convert the elements to unsigned bytes");
  }
  const int count = std::to_integer<int>(magic[3]);
  if (labels ? count != 1 : count < 2) {
    file.fail(3, count_of(count, "dimension") + ", but " + (labels ? "labels have 1" : "images have at least 2"),
              "are the image and the label file exchanged?");
  }

  IdxHeader header;
  header.elements = 1;
  for (int i = 0; i < count; ++i) {
    const auto at = file.offset();
    std::array<std::byte, 4> big_endian{};
    file.read_all(big_endian, ", inside the dimensions");
    std::uint64_t dimension = 0;
    for (const auto byte : big_endian) dimension = dimension << 8 | std::to_integer<std::uint64_t>(byte);
    if (dimension == 0) file.fail(at, dimension_is_zero(static_cast<std::size_t>(i)));
    if (__builtin_mul_overflow(header.elements, dimension, &header.elements)) {
      file.fail(at, "the dimensions up to here multiply to more than 2^64 elements");
    }
    header.dimensions.push_back(static_cast<std::int64_t>(dimension));
  }
  header.bytes = file.offset();
  return header;
}

std::string promise(const IdxHeader& header) {
  return "the header promises " + describe_shape(header.dimensions) + " bytes from offset " +
         std::to_string(header.bytes);
}

void read_images(ByteSource& file, const IdxHeader& header, std::span<std::byte> into) {
  file.read_all(into, ": " + promise(header));
  file.expect_end(promise(header));
}

void read_labels(ByteSource& file, const IdxHeader& header, std::span<std::byte> into) {
  std::array<std::byte, 64 << 10> chunk;
  for (std::uint64_t done = 0; done < header.elements;) {
    const auto wanted = std::min<std::uint64_t>(chunk.size(), header.elements - done);
    file.read_all({chunk.data(), wanted}, ": " + promise(header));
    for (std::uint64_t i = 0; i < wanted; ++i) {
      const auto label = std::to_integer<std::int64_t>(chunk[i]);
      std::memcpy(into.data() + (done + i) * sizeof label, &label, sizeof label);
    }
    done += wanted;
  }
  file.expect_end(promise(header));
}

SharedMemory load_idx_pair(const std::filesystem::path& images_path, const std::filesystem::path& labels_path) {
  ByteSource images(images_path);
  ByteSource labels(labels_path);
  const auto image_header = read_header(images, false);
  images.expect_remaining(image_header.elements, promise(image_header));
  const auto label_header = read_header(labels, true);
  labels.expect_remaining(label_header.elements, promise(label_header));
  const auto count = image_header.dimensions.front();
  if (count != label_header.dimensions.front()) {
    labels.fail(4,
                std::to_string(label_header.dimensions.front()) + " labels, but " + images_path.string() +
                    " has (at its offset 4) " + std::to_string(count) + " images",
                "are both files of the same data set?");
  }
  const auto& shape = image_header.dimensions;
  auto dataset = InMemoryDataset::allocate(
      "dtrain-idx", count,
      {{"image", ElementType::kUint8, {shape.begin() + 1, shape.end()}}, {"label", ElementType::kInt64, {}}});
  read_images(images, image_header, dataset.column(0));
  read_labels(labels, label_header, dataset.column(1));
  return std::move(dataset).release();
}

}  // namespace

std::shared_ptr<Dataset> read_idx(const std::filesystem::path& images, const std::filesystem::path& labels,
                                  const HostShare& share) {
  const auto name = "idx:" + images.string() + ":" + labels.string();
  return std::make_shared<InMemoryDataset>(share(name, [&] { return load_idx_pair(images, labels); }));
}

std::shared_ptr<Dataset> Idx::open(const Source& source, const HostShare& share) const {
  return open_files(source, kSource, [&](const Source& part) -> std::shared_ptr<Dataset> {
    return read_idx(part.at("features"), part.at("target"), share);
  });
}

}  // namespace dtrain::data
