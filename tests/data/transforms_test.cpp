// The data sets of pictures, and their transforms.
#include <cmath>

#include <gmock/gmock.h>

#include "../harness/temporary_folder.h"
#include "dtrain/base/file.h"
#include "dtrain/data/formats.h"
#include "dtrain/data/image_folder.h"
#include "dtrain/data/shards.h"
#include "dtrain/data/transforms.h"
#include "file_test.h"
#include "images/view.h"
#include "picture_files.h"
#include "tar_archive.h"

namespace dtrain::data {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Samples of one epoch, field by field.
template <typename Element>
std::vector<Element> read_batch(const Dataset& dataset, std::size_t field, const std::vector<std::int64_t>& samples,
                                const BatchPlace& place = {}) {
  const BatchAllocator allocate = [](std::size_t bytes) {
    return std::shared_ptr<std::byte>(new std::byte[bytes], std::default_delete<std::byte[]>());
  };
  const auto builder = dataset.begin(place, static_cast<std::int64_t>(samples.size()), allocate);
  builder->read(0, samples);
  const HostBatch batch = builder->finish();
  std::size_t count = samples.size();
  for (const std::int64_t extent : batch.shapes.at(field)) count *= static_cast<std::size_t>(extent);
  std::vector<Element> elements(count);
  std::memcpy(elements.data(), batch.fields[field].get(), count * sizeof(Element));
  return elements;
}

class Pictures : public FileTest {
 protected:
  // FOLDER/a has three pictures, FOLDER/b two, of different sizes.
  void SetUp() override {
    for (int i = 0; i < 5; ++i) {
      const std::string name = std::string(i < 3 ? "a/" : "b/") + std::to_string(i) + ".png";
      std::filesystem::create_directories((folder_ / name).parent_path());
      write(name, png_of(gradient({20 + 3 * i, 30 - 2 * i})));
    }
  }
  std::shared_ptr<SampleSource> source() const { return load_image_folder(folder_); }
  Image picture(const std::string& name) const {
    const std::string file = read_file(folder_ / name);
    return decode_image(std::as_bytes(std::span(file)));
  }
  std::string refusal(const std::vector<Transform>& transforms) const {
    return failure([&] { transformed(source(), transforms); });
  }
};

TEST_F(Pictures, OfAFolderHaveItsClasses) {
  write("a/notes.txt", "no picture");
  const ImageFolderFiles listed = list_image_folder(folder_);
  EXPECT_THAT(listed.classes, ElementsAre("a", "b"));
  ASSERT_EQ(listed.files.size(), 5u);
  EXPECT_EQ(listed.files[4].path, folder_ / "b/4.png");
  const auto dataset = transformed(source(), {CenterCrop{.size = 8, .width = 6}});
  ASSERT_EQ(dataset->size(), 5);
  EXPECT_EQ(dataset->fields()[0].shape, (std::vector<std::int64_t>{3, 8, 6}));
  EXPECT_EQ(dataset->fields()[0].type, ElementType::kUint8);
  EXPECT_THAT(read_batch<std::int64_t>(*dataset, 1, {0, 4, 2, 3}), ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(dataset->where(3), (folder_ / "b/3.png").string());
}

TEST_F(Pictures, CropsAreWhatTheyAreCalled) {
  const Image image = picture("a/0.png");
  const auto expect = [&](const Transform& transform, const Region& region) {
    const auto dataset = transformed(source(), {transform});
    const auto pixels = read_batch<std::uint8_t>(*dataset, 0, {0});
    const std::size_t plane = pixels.size() / 3;
    for (int y = 0; y < region.height; ++y) {
      for (int x = 0; x < region.width; ++x) {
        const std::uint8_t* pixel = image.row(region.y + y) + (region.x + x) * Image::kBytes;
        for (std::size_t c = 0; c < 3; ++c) {
          ASSERT_EQ(pixels[c * plane + static_cast<std::size_t>(y * region.width + x)], pixel[c]);
        }
      }
    }
  };
  expect(CenterCrop{.size = 10}, {5, 10, 10, 10});
  expect(CenterCrop{.size = 30, .width = 20}, {0, 0, 20, 30});
  expect(RandomCrop{.size = 30, .width = 20}, {0, 0, 20, 30});
}

TEST_F(Pictures, CropsOfAResizedPictureAreThoseOfTheWholeOne) {
  const Image image = picture("a/0.png");  // 20 x 30
  const Image all = resized(image, {0, 0, 20, 30}, {14, 21});
  const auto dataset = transformed(source(), {Resize{.size = 14}, CenterCrop{.size = 9, .width = 7}});
  const auto pixels = read_batch<std::uint8_t>(*dataset, 0, {0});
  for (int y = 0; y < 9; ++y) {
    for (int x = 0; x < 7; ++x) {
      // (14 - 7) / 2 = 3.5 is rounded to even.
      ASSERT_EQ(pixels[static_cast<std::size_t>(y * 7 + x)], all.row(6 + y)[(4 + x) * Image::kBytes]) << x << " " << y;
    }
  }
}

TEST_F(Pictures, EdgesThatAreAddedAreBlack) {
  const auto dataset = transformed(source(), {CenterCrop{.size = 50}});
  const auto pixels = read_batch<std::uint8_t>(*dataset, 0, {0});
  EXPECT_EQ(pixels[0], 0);
  EXPECT_EQ(pixels[50 * 50 - 1], 0);
  const auto padded = transformed(source(), {RandomCrop{.size = 34, .width = 24, .padding = 2}});
  const auto around = read_batch<std::uint8_t>(*padded, 0, {0});
  EXPECT_EQ(around[0], 0);
  EXPECT_EQ(around.back(), 0);
  const auto too_small = transformed(source(), {RandomCrop{.size = 50}});
  EXPECT_THAT(failure([&] { read_batch<std::uint8_t>(*too_small, 0, {0}); }),
              AllOf(HasSubstr("a/0.png: random_crop of 50 x 50 pixels from a picture of 20 x 30"),
                    HasSubstr("put a resize before it")));
}

TEST_F(Pictures, RandomNumbersAreThoseOfSeedEpochAndSample) {
  const auto dataset = transformed(
      source(), {RandomResizedCrop{.size = 12}, HorizontalFlip{}, ColorJitter{.brightness = 0.5, .hue = 0.1}});
  const auto read = [&](std::uint64_t seed, std::int64_t epoch) {
    return read_batch<std::uint8_t>(*dataset, 0, {2}, {{seed, epoch}, 0});
  };
  EXPECT_EQ(read(1, 2), read(1, 2));
  EXPECT_NE(read(1, 2), read(1, 3));
  EXPECT_NE(read(1, 2), read(2, 2));
  // The same in a batch of others.
  const auto batch = read_batch<std::uint8_t>(*dataset, 0, {0, 2}, {{1, 2}, 7});
  EXPECT_EQ(std::vector<std::uint8_t>(batch.begin() + 3 * 12 * 12, batch.end()), read(1, 2));
}

TEST_F(Pictures, AreFlippedAsOftenAsIsSaid) {
  const auto count = [&](double probability) {
    const auto dataset = transformed(source(), {CenterCrop{.size = 4}, HorizontalFlip{probability}});
    const auto plain = read_batch<std::uint8_t>(*transformed(source(), {CenterCrop{.size = 4}}), 0, {1});
    int flipped = 0;
    for (std::int64_t epoch = 0; epoch < 400; ++epoch) {
      flipped += read_batch<std::uint8_t>(*dataset, 0, {1}, {{5, epoch}, 0}) != plain ? 1 : 0;
    }
    return flipped;
  };
  EXPECT_EQ(count(0), 0);
  EXPECT_EQ(count(1), 400);
  EXPECT_NEAR(count(0.25), 100, 40);  // 4.6 standard deviations
}

TEST(RandomResizedCrop, HasTheAreasAndRatiosThatAreAllowed) {
  const std::vector<Transform> list{RandomResizedCrop{.size = 10, .min_area = 0.2, .max_area = 0.6}};
  double least = 1, most = 0;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    RandomStream random{31, i};
    View view({300, 200});
    ASSERT_EQ(collect(view, list, 0, random), 1u);
    const DecodeRequest request = view.request(false);
    const double area = request.region.width * request.region.height / (300.0 * 200);
    const double ratio = static_cast<double>(request.region.width) / request.region.height;
    least = std::min(least, area);
    most = std::max(most, area);
    ASSERT_GE(ratio, 0.73);
    ASSERT_LE(ratio, 1.36);
  }
  EXPECT_NEAR(least, 0.2, 0.02);
  EXPECT_NEAR(most, 0.6, 0.02);
  // No part of a very long picture is allowed, except the middle.
  RandomStream random{1};
  View view({1000, 10});
  collect(view, {{RandomResizedCrop{.size = 10, .min_area = 1}}}, 0, random);
  EXPECT_EQ(view.request(false).region, (Region{493, 0, 13, 10}));
}

TEST_F(Pictures, AreNormalized) {
  const Normalize normalize{.mean = {0.5, 0.25, 0}, .std = {0.5, 0.25, 2}};
  const auto bytes = read_batch<std::uint8_t>(*transformed(source(), {CenterCrop{.size = 5}}), 0, {3});
  const auto numbers = read_batch<float>(*transformed(source(), {CenterCrop{.size = 5}, normalize}), 0, {3});
  ASSERT_EQ(numbers.size(), bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const std::size_t c = i / 25;
    EXPECT_NEAR(numbers[i], (bytes[i] / 255.0 - normalize.mean[c]) / normalize.std[c], 1e-5);
  }
}

TEST_F(Pictures, OfABatchAreMixed) {
  const std::vector<std::int64_t> samples{0, 3, 4};
  const Normalize identity{.mean = {0, 0, 0}, .std = {1, 1, 1}};
  const auto plain = read_batch<float>(*transformed(source(), {CenterCrop{.size = 6}, identity}), 0, samples);
  const auto dataset = transformed(source(), {CenterCrop{.size = 6}, identity, MixUp{.alpha = 1, .classes = 2}});
  EXPECT_EQ(dataset->fields()[1].shape, (std::vector<std::int64_t>{2}));
  const BatchPlace place{{3, 4}, 30};
  const auto mixed = read_batch<float>(*dataset, 0, samples, place);
  const auto labels = read_batch<float>(*dataset, 1, samples, place);
  ASSERT_EQ(labels.size(), 6u);
  const float share = labels[3];  // sample 3 is of class 1, the one before it of class 0
  EXPECT_GT(share, 0);
  EXPECT_LT(share, 1);
  EXPECT_NEAR(labels[0], share, 1e-6);
  EXPECT_NEAR(labels[1], 1 - share, 1e-6);
  EXPECT_NEAR(labels[5], 1, 1e-6);
  const std::size_t size = 3 * 6 * 6;
  for (std::size_t i = 0; i < size; ++i) {
    EXPECT_NEAR(mixed[size + i], plain[size + i] * share + plain[i] * (1 - share), 1e-5);
    EXPECT_NEAR(mixed[i], plain[i] * share + plain[2 * size + i] * (1 - share), 1e-5);
  }
  EXPECT_NE(read_batch<float>(*dataset, 1, samples, {{3, 5}, 30}), labels);
  const auto few = transformed(source(), {CenterCrop{.size = 6}, MixUp{.classes = 2}, CutMix{.classes = 2}});
  EXPECT_EQ(read_batch<float>(*few, 1, samples, place).size(), 6u);
}

TEST_F(Pictures, OfABatchGetRectanglesOfEachOther) {
  const std::vector<std::int64_t> samples{0, 3};
  const auto plain = read_batch<std::uint8_t>(*transformed(source(), {CenterCrop{.size = 16}}), 0, samples);
  const auto dataset = transformed(source(), {CenterCrop{.size = 16}, CutMix{.classes = 2}});
  for (std::int64_t epoch = 0; epoch < 20; ++epoch) {
    const BatchPlace place{{3, epoch}, 0};
    const auto mixed = read_batch<std::uint8_t>(*dataset, 0, samples, place);
    const auto labels = read_batch<float>(*dataset, 1, samples, place);
    int own = 0, other = 0;
    for (std::size_t i = 0; i < 256; ++i) {
      if (plain[i] == plain[768 + i]) continue;
      own += mixed[i] == plain[i] ? 1 : 0;
      other += mixed[i] == plain[768 + i] ? 1 : 0;
    }
    ASSERT_GT(own + other, 100);
    EXPECT_NEAR(labels[0], static_cast<double>(own) / (own + other), 0.1);
  }
}

TEST_F(Pictures, WithTransformsThatDoNotFitTogetherAreRefused) {
  EXPECT_THAT(refusal({}), HasSubstr("pictures have many sizes, and a batch needs one"));
  EXPECT_THAT(refusal({Resize{.size = 20}}), HasSubstr("pictures have many sizes"));
  EXPECT_EQ(refusal({Resize{.size = 20, .width = 30}}), "");
  EXPECT_THAT(refusal({CenterCrop{.size = 4}, Normalize{}, HorizontalFlip{}}),
              HasSubstr("horizontal_flip cannot come after normalize"));
  EXPECT_THAT(refusal({CenterCrop{.size = 4}, Normalize{}, Normalize{}}), HasSubstr("normalize stands here twice"));
  EXPECT_THAT(refusal({CenterCrop{.size = 4}, MixUp{.classes = 3}, Normalize{}}),
              HasSubstr("normalize cannot come after mixup"));
  EXPECT_THAT(refusal({CenterCrop{.size = 4}, MixUp{.classes = 3}, CutMix{.classes = 4}}),
              HasSubstr("cutmix has classes: 4, and the one before it has 3"));
  EXPECT_EQ(refusal({CenterCrop{.size = 4}, MixUp{.classes = 3}, CutMix{.classes = 3}}), "");
  const auto few = transformed(source(), {CenterCrop{.size = 4}, MixUp{.classes = 2}});
  write("c/0.png", png_of(gradient({8, 8})));
  const auto more = transformed(source(), {CenterCrop{.size = 4}, MixUp{.classes = 2}});
  EXPECT_THAT(failure([&] { read_batch<float>(*more, 1, {5}); }), HasSubstr("has class 2, but the transform says"));
}

TEST_F(Pictures, ThatAreDamagedNameFileAndByte) {
  const std::string whole = read_file(folder_ / "b/3.png");
  write("b/3.png", whole.substr(0, whole.size() / 2));
  const auto dataset = transformed(source(), {CenterCrop{.size = 16}});
  EXPECT_THAT(failure([&] { read_batch<std::uint8_t>(*dataset, 0, {3}); }),
              AllOf(HasSubstr("b/3.png: truncated: the PNG ends here"),
                    HasSubstr("(byte " + std::to_string(whole.size() / 2) + " of")));
  std::filesystem::remove(folder_ / "b/3.png");
  EXPECT_THAT(failure([&] { read_batch<std::uint8_t>(*dataset, 0, {3}); }), HasSubstr("b/3.png: cannot be opened"));
}

TEST_F(Pictures, OfFoldersThatAreNoneAreRefused) {
  EXPECT_THAT(failure([&] { load_image_folder(folder_ / "none"); }), HasSubstr("none: cannot be read: No such file"));
  EXPECT_THAT(failure([&] { load_image_folder(folder_ / "a"); }),
              HasSubstr("has no folders, and each class needs one"));
  std::filesystem::create_directory(folder_ / "empty");
  EXPECT_THAT(failure([&] { load_image_folder(folder_); }), HasSubstr("empty: has no pictures"));
}

}  // namespace
}  // namespace dtrain::data
