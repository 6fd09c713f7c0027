// Pictures are what torchvision makes of them: 200 drawn ones (images.py). Damaged ones are errors.
#include <cmath>
#include <fstream>
#include <numeric>

#include <gmock/gmock.h>

#include "../harness/temporary_folder.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/data/dataset.h"
#include "dtrain/data/image.h"
#include "images/view.h"
#include "picture_files.h"

namespace dtrain::data {
namespace {

using ::testing::HasSubstr;

std::span<const std::byte> bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

struct Case {
  std::string name;
  Size size;
  Region region;
  Size resized;
};

// The pixels as rows of RGB.
std::string rgb(const Image& image) {
  std::string text;
  for (int y = 0; y < image.height(); ++y) {
    for (int x = 0; x < image.width(); ++x) {
      text.append(reinterpret_cast<const char*>(image.row(y)) + x * Image::kBytes, 3);
    }
  }
  return text;
}

struct Difference {
  int largest = 0;
  double mean = 0;
};

Difference difference(const std::string& a, const std::string& b) {
  EXPECT_EQ(a.size(), b.size());
  Difference result;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const int levels = std::abs(static_cast<std::uint8_t>(a[i]) - static_cast<std::uint8_t>(b[i]));
    result.largest = std::max(result.largest, levels);
    result.mean += levels;
  }
  result.mean /= static_cast<double>(std::max<std::size_t>(a.size(), 1));
  return result;
}

Region whole(const DecodedRegion& decoded) {
  return {static_cast<int>(decoded.region.x), static_cast<int>(decoded.region.y),
          static_cast<int>(decoded.region.width), static_cast<int>(decoded.region.height)};
}

class Images : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::filesystem::path python = DTRAIN_PEERS_PYTHON;
    if (!std::filesystem::exists(python)) GTEST_SKIP() << python << " is not there: scripts/setup.sh test";
    const Drawn& all = drawn(python);
    folder_ = all.folder.path();
    cases_ = all.cases;
    ASSERT_EQ(cases_.size(), 200u);
  }
  std::string content(const Case& one) const { return read_file(folder_ / one.name); }
  // The whole picture, and its region resized.
  std::pair<std::string, std::string> expected(const Case& one) const {
    const std::string text = read_file((folder_ / one.name).replace_extension(".rgb"));
    const auto first = static_cast<std::size_t>(one.size.width) * static_cast<std::size_t>(one.size.height) * 3;
    return {text.substr(0, first), text.substr(first)};
  }

  std::filesystem::path folder_;
  std::vector<Case> cases_;

 private:
  struct Drawn {
    explicit Drawn(const std::filesystem::path& python) {
      ProcessOptions options;
      options.command = {python, "-B", DTRAIN_SOURCE_DIR "/tests/data/images.py", folder.path()};
      EXPECT_TRUE(Process::start(options).wait().success());
      std::ifstream file(folder.path() / "cases.txt");
      Case one;
      while (file >> one.name >> one.size.width >> one.size.height >> one.region.x >> one.region.y >>
             one.region.width >> one.region.height >> one.resized.width >> one.resized.height) {
        cases.push_back(one);
      }
    }
    TemporaryFolder folder;
    std::vector<Case> cases;
  };
  // Once for all tests.
  static const Drawn& drawn(const std::filesystem::path& python) {
    static const Drawn all(python);
    return all;
  }
};

TEST_F(Images, AreThoseOfTorchvision) {
  int differing = 0;
  for (const Case& one : cases_) {
    SCOPED_TRACE(one.name);
    const std::string file = content(one);
    EXPECT_EQ(image_size(bytes(file)), one.size);
    const Image all = decode_image(bytes(file));
    const auto [picture, part] = expected(one);
    EXPECT_EQ(difference(rgb(all), picture).largest, 0);

    const DecodedRegion decoded = decode_region(bytes(file), [&](Size) { return DecodeRequest{one.region}; });
    // Decoding a part alone changes nothing.
    EXPECT_EQ(rgb(cropped(decoded.image, whole(decoded))), rgb(cropped(all, one.region)));
    const Difference resizing = difference(rgb(resized(decoded.image, decoded.region, one.resized)), part);
    EXPECT_LE(resizing.largest, 1);
    differing += resizing.largest;
  }
  EXPECT_LE(differing, 20);  // libtorch's own kernels differ from each other in a last bit
}

// The bounds that docs/data.md gives.
TEST_F(Images, ScaledDecodingStaysWithinItsBound) {
  double sum = 0;
  int count = 0;
  for (const Case& one : cases_) {
    if (!one.name.ends_with(".jpg")) continue;
    SCOPED_TRACE(one.name);
    const std::string file = content(one);
    const DecodedRegion decoded = decode_region(bytes(file), [&](Size) {
      return DecodeRequest{one.region, one.resized};
    });
    EXPECT_GE(decoded.region.width + 1e-9, std::min(one.region.width, one.resized.width));
    EXPECT_GE(decoded.region.height + 1e-9, std::min(one.region.height, one.resized.height));
    if (decoded.region.width == one.region.width) continue;      // not at a fraction of its size
    if (one.resized.width * one.resized.height < 100) continue;  // too few for a mean
    const Difference scaled =
        difference(rgb(resized(decoded.image, decoded.region, one.resized)), expected(one).second);
    EXPECT_LE(scaled.mean, 4);
    sum += scaled.mean;
    ++count;
  }
  ASSERT_GT(count, 15);
  RecordProperty("mean", std::to_string(sum / count));
  EXPECT_LE(sum / count, 2);
}

TEST_F(Images, ChangeTheirColoursAsThoseOfTorchvision) {
  const std::string file = content(cases_[0]);
  std::ifstream list(folder_ / "colors.txt");
  std::string function, factor;
  int count = 0;
  while (list >> function >> factor) {
    SCOPED_TRACE(function + " " + factor);
    Image image = decode_image(bytes(file));
    const double by = std::stod(factor);
    if (function == "brightness") adjust_brightness(image, by);
    if (function == "contrast") adjust_contrast(image, by);
    if (function == "saturation") adjust_saturation(image, by);
    if (function == "hue") adjust_hue(image, by);
    EXPECT_LE(difference(rgb(image), read_file(folder_ / (function + "-" + factor + ".rgb"))).largest, 1);
    ++count;
  }
  EXPECT_EQ(count, 16);
}

TEST_F(Images, ThatAreDamagedAreErrorsWithAnOffset) {
  for (const char* name : {"000.jpg", "002.jpg", "005.png"}) {
    SCOPED_TRACE(name);
    const std::string file = read_file(folder_ / name);
    for (const std::size_t kept : {std::size_t{1}, std::size_t{12}, file.size() / 2, file.size() * 9 / 10}) {
      const std::string cut = file.substr(0, kept);
      try {
        decode_image(bytes(cut));
        ADD_FAILURE() << "of " << kept << " bytes";
      } catch (const ImageError& error) {
        EXPECT_LE(error.offset(), kept);
        if (kept > 12) {
          EXPECT_THAT(error.what(), HasSubstr("truncated"));
        }
      }
    }
  }
}

TEST(ImageBytes, OfOtherFormatsAreRefused) {
  const auto refusal = [](const std::string& text) {
    try {
      decode_image(bytes(text));
    } catch (const ImageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal(""), "the file is empty");
  EXPECT_EQ(refusal("GIF89a"), "neither JPEG nor PNG: its first bytes are 474946383961");
  // A PNG's header alone: 2^16 x 2^16 pixels.
  const std::string huge("\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\1\0\0\0\1\0\0\x08\2\0\0\0\xe3\xe6\xa7\xb4\0\0\0\1IDAT", 41);
  EXPECT_THAT(refusal(huge), HasSubstr("65536 x 65536 pixels"));
}

// Seeded damage: an error with an offset in the file, or some picture.
TEST(ImageBytes, DamagedByChanceAreDecodedOrRefused) {
  const Image picture = gradient({60, 45});
  RandomStream random{31};
  for (const std::string& good : {jpeg_of(picture), png_of(picture)}) {
    int refused = 0;
    constexpr int kCases = 2000;
    for (int i = 0; i < kCases; ++i) {
      const std::string text = damaged_by_chance(good, random, 3, 100);
      try {
        // A part, as transforms decode it.
        decode_region(bytes(text), [](Size size) {
          return DecodeRequest{{size.width / 3, size.height / 3, (size.width + 2) / 3, (size.height + 2) / 3},
                               {size.width / 7, size.height / 7}};
        });
      } catch (const ImageError& error) {
        ++refused;
        EXPECT_LE(error.offset(), text.size());
      }
    }
    EXPECT_GT(refused, kCases / 4);
    EXPECT_LT(refused, kCases);
  }
}

TEST(Resizing, KeepsAConstantPicture) {
  for (const Size from : {Size{1, 1}, Size{2, 3}, Size{7, 1}, Size{300, 5}, Size{33, 200}}) {
    for (const Size to : {Size{1, 1}, Size{3, 2}, Size{8, 40}, Size{250, 1}}) {
      Image image(from);
      for (int y = 0; y < from.height; ++y) std::fill_n(image.row(y), image.stride(), std::uint8_t{200});
      const Image result =
          resized(image, {0, 0, static_cast<double>(from.width), static_cast<double>(from.height)}, to);
      ASSERT_EQ(result.size(), to);
      EXPECT_EQ(rgb(result), std::string(static_cast<std::size_t>(to.width * to.height) * 3, '\xc8'));
    }
  }
}

TEST(Resizing, OfABoxLooksAtNothingElse) {
  Image image({40, 40});
  std::fill_n(image.row(0), image.stride() * 40, std::uint8_t{255});
  for (int y = 10; y < 20; ++y) std::fill_n(image.row(y) + 10 * Image::kBytes, 10 * Image::kBytes, std::uint8_t{7});
  EXPECT_EQ(rgb(resized(image, {10, 10, 10, 10}, {3, 4})), std::string(36, '\7'));
  EXPECT_EQ(rgb(resized(image, {10.25, 10.5, 9.5, 9.25}, {3, 4})), std::string(36, '\7'));
}

TEST(Mirroring, ExchangesLeftAndRight) {
  Image image({3, 1});
  for (int i = 0; i < 3 * Image::kBytes; ++i) image.row(0)[i] = static_cast<std::uint8_t>(i);
  EXPECT_EQ(rgb(mirrored(image)), std::string("\x08\x09\x0a\x04\x05\x06\0\x01\x02", 9));
}

}  // namespace
}  // namespace dtrain::data
