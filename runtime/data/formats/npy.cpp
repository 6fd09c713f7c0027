#include "dtrain/data/data_sets.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data_file.h"
#include "dtrain/data/formats.h"
#include "dtrain/data/in_memory.h"
#include "source_files.h"

namespace dtrain::data {
namespace {

// The header of a .npy file: magic number, version, and a Python literal that describes the array.
struct NpyHeader {
  ElementType type = ElementType::kFloat32;
  std::vector<std::int64_t> shape;  // at least one dimension, none of them 0
  std::uint64_t shape_at = 0;       // offset of the shape's text
  std::uint64_t bytes = 0;          // of the array
};

// numpy warns above 10,000 bytes; a longer header than this is damaged or hostile.
constexpr std::uint32_t kLongestNpyHeader = 1 << 20;
constexpr std::string_view kNpyMagic = "\x93NUMPY";

struct NpyType {
  std::string_view descr;
  std::string_view name;
  ElementType type;
};
constexpr std::array kNpyTypes{
    NpyType{"<f4", "float32", ElementType::kFloat32}, NpyType{"<f8", "float64", ElementType::kFloat64},
    NpyType{"|u1", "uint8", ElementType::kUint8}, NpyType{"<i4", "int32", ElementType::kInt32},
    NpyType{"<i8", "int64", ElementType::kInt64}};

std::string in_quotes(std::string_view text) {
  return "'" + std::string(text) + "'";
}

// Parses {'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }; other Python syntax is an error.
class Literal {
 public:
  Literal(const ByteSource& file, std::string_view text, std::uint64_t start)
      : file_(file), text_(text), start_(start) {}

  NpyHeader read() {
    NpyHeader header;
    expect('{');
    while (!accept('}')) {
      const auto key_at = here();
      const auto key = string("a key");
      expect(':');
      const auto value_at = here();
      if (key == "descr" && !has_descr_) {
        has_descr_ = true;
        header.type = type(value_at);
      } else if (key == "fortran_order" && !has_order_) {
        has_order_ = true;
        c_order(value_at);
      } else if (key == "shape" && !has_shape_) {
        has_shape_ = true;
        header.shape_at = value_at;
        header.shape = shape();
      } else {
        file_.fail(key_at, "the header's key " + in_quotes(key) + " is unknown or there twice");
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    if (!has_descr_ || !has_order_ || !has_shape_) {
      file_.fail(start_, std::string("the header has no key ") + (!has_descr_   ? "'descr'"
                                                                  : !has_order_ ? "'fortran_order'"
                                                                                : "'shape'"));
    }
    skip_space();
    if (at_ < text_.size()) file_.fail(here(), "text after the end of the header's dictionary");
    return header;
  }

 private:
  std::uint64_t here() {
    skip_space();
    return start_ + at_;
  }
  void skip_space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }
  bool accept(char wanted) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!accept(wanted)) file_.fail(here(), std::string("the header has no '") + wanted + "' here");
  }
  std::string string(const std::string& what) {
    const auto at = here();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    const auto end = quote == '\'' || quote == '"' ? text_.find(quote, at_ + 1) : std::string_view::npos;
    if (end == std::string_view::npos)
      file_.fail(at, "the header has no text in quotes here, where " + what + " belongs");
    std::string text(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return text;
  }

  ElementType type(std::uint64_t at) {
    constexpr auto kRemedy = "save it with array.astype('float32'), or as uint8, int32, int64 or float64";
    if (at_ < text_.size() && text_[at_] == '[') file_.fail(at, "a structured array, which is not read", kRemedy);
    const auto descr = string("the element type");
    for (const auto& known : kNpyTypes) {
      if (descr == known.descr ||
          (known.type == ElementType::kUint8 && (descr == "<u1" || descr == ">u1" || descr == "=u1"))) {
        return known.type;
      }
      if (descr == ">" + std::string(known.descr.substr(1))) {
        file_.fail(at, "big-endian elements (" + in_quotes(descr) + "), but only little-endian ones are read",
                   "save it with array.astype('" + std::string(known.descr) + "')");
      }
    }
    const auto kind = descr.find('O') != std::string::npos ? "Python objects (" + in_quotes(descr) + ")"
                                                           : "element type " + in_quotes(descr);
    file_.fail(at, kind + ", but only uint8, int32, int64, float32 and float64 are read", kRemedy);
  }

  void c_order(std::uint64_t at) {
    if (text_.substr(at_).starts_with("False")) {
      at_ += 5;
    } else if (text_.substr(at_).starts_with("True")) {
      file_.fail(at, "Fortran order, but only C order is read", "save it with numpy.ascontiguousarray(array)");
    } else {
      file_.fail(at, "neither True nor False here, as the value of 'fortran_order'");
    }
  }

  std::vector<std::int64_t> shape() {
    std::vector<std::int64_t> shape;
    const auto at = here();
    expect('(');
    while (!accept(')')) {
      const auto extent_at = here();
      std::int64_t extent = 0;
      const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), extent);
      if (error != std::errc{} || extent < 0) file_.fail(extent_at, "the shape has no dimension from 0 to 2^63-1 here");
      if (extent == 0) file_.fail(extent_at, dimension_is_zero(shape.size()));
      at_ = static_cast<std::size_t>(end - text_.data());
      shape.push_back(extent);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    if (shape.empty()) file_.fail(at, "an array without dimensions, but the first one counts the samples");
    return shape;
  }

  const ByteSource& file_;
  std::string_view text_;
  std::uint64_t start_;  // offset of text_ in the file
  std::size_t at_ = 0;
  bool has_descr_ = false, has_order_ = false, has_shape_ = false;
};

std::uint32_t read_length(ByteSource& file, std::size_t bytes) {
  std::array<std::byte, 4> little_endian{};
  const auto at = file.offset();
  file.read_all(std::span(little_endian).first(bytes), ", inside the header's length");
  std::uint32_t length = 0;
  for (std::size_t i = bytes; i-- > 0;) length = length << 8 | std::to_integer<std::uint32_t>(little_endian[i]);
  if (length > kLongestNpyHeader) {
    file.fail(at, "a header of " + std::to_string(length) + " bytes; the longest that is read has " +
                      std::to_string(kLongestNpyHeader));
  }
  return length;
}

// Returns "the header promises 60000 x 28 x 28 float32".
std::string promise(const NpyHeader& header) {
  std::string text;
  for (const auto extent : header.shape) text += (text.empty() ? "" : " x ") + std::to_string(extent);
  const auto* known =
      std::find_if(kNpyTypes.begin(), kNpyTypes.end(), [&](const auto& t) { return t.type == header.type; });
  return "the header promises " + text + " " + std::string(known->name);
}

// Leaves the file at its first element. Compares the file's size with the header. DataError: see load_npy().
NpyHeader read_npy_header(ByteSource& file) {
  std::array<char, kNpyMagic.size() + 2> start{};
  file.read_all(std::as_writable_bytes(std::span(start)), ", inside the magic number");
  if (std::string_view(start.data(), kNpyMagic.size()) != kNpyMagic) {
    file.fail(0, "not the magic number that a .npy file begins with", "write the file with numpy.save");
  }
  const int major = static_cast<unsigned char>(start[kNpyMagic.size()]);
  const int minor = static_cast<unsigned char>(start[kNpyMagic.size() + 1]);
  if (major < 1 || major > 3 || minor != 0) {
    file.fail(kNpyMagic.size(), "format version " + std::to_string(major) + "." + std::to_string(minor) +
                                    ", but 1.0, 2.0 and 3.0 are read");
  }
  const auto length = read_length(file, major == 1 ? 2 : 4);
  const auto text_at = file.offset();
  std::string text(length, '\0');
  file.read_all(std::as_writable_bytes(std::span(text)), ", inside the header");

  auto header = Literal(file, text, text_at).read();
  header.bytes = size_of(header.type);
  for (const auto extent : header.shape) {
    if (__builtin_mul_overflow(header.bytes, static_cast<std::uint64_t>(extent), &header.bytes)) {
      file.fail(header.shape_at, "the dimensions multiply to more than 2^64 bytes");
    }
  }
  file.expect_remaining(header.bytes, promise(header));
  return header;
}

Field field(const std::string& name, const NpyHeader& header) {
  return {name, header.type, {header.shape.begin() + 1, header.shape.end()}};
}

void read_array(ByteSource& file, const NpyHeader& header, std::span<std::byte> into) {
  file.read_all(into, ": " + promise(header));
  file.expect_end(promise(header));
}

// `file`: that of the target, whose fail() reports the error.
template <class File>
void expect_same_count(const std::filesystem::path& features_path, const NpyHeader& features, const File& file,
                       const NpyHeader& target) {
  const std::int64_t count = features.shape.front();
  if (target.shape.front() == count) return;
  file.fail(target.shape_at,
            std::to_string(target.shape.front()) + " samples, but " + features_path.string() + " has (at its offset " +
                std::to_string(features.shape_at) + ") " + std::to_string(count),
            "are both files of the same data set?");
}

struct OpenArray {
  ArrayFiles::Array array;
  NpyHeader header;
};

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
  expect_same_count(features_path, features_header, target, target_header);
  auto dataset = InMemoryDataset::allocate("dtrain-npy", features_header.shape.front(),
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
  expect_same_count(features, first.header, *second.array.file, second.header);
  return std::make_shared<ArrayFiles>(first.header.shape.front(), std::vector{first.array, second.array});
}

std::shared_ptr<Dataset> Npy::open(const Source& source, const HostShare& share) const {
  return open_files(source, kSource, [&](const Source& part) {
    const std::filesystem::path features = part.at("features"), target = part.at("target");
    return reads_in_place(*this, features, target) ? open_npy(features, target) : load_npy(features, target, share);
  });
}

}  // namespace dtrain::data
