// IDX files as they should be, as Debian ships them, and broken in every way that a download or a typing error can.
#include "dtrain/data/data_sets.h"

#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "../harness/temporary_folder.h"
#include "dtrain/base/error.h"

namespace dtrain::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string idx(int type, const std::vector<std::uint32_t>& dimensions, const std::string& payload) {
  std::string file{'\0', '\0', static_cast<char>(type), static_cast<char>(dimensions.size())};
  for (const auto dimension : dimensions) {
    for (int shift = 24; shift >= 0; shift -= 8) file += static_cast<char>(dimension >> shift & 255);
  }
  return file + payload;
}

std::string gzip(const std::string& plain) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, plain.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(plain.data()));
  stream.avail_in = static_cast<uInt>(plain.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string counting(std::size_t bytes) {
  std::string text(bytes, '\0');
  std::iota(text.begin(), text.end(), '\1');
  return text;
}

class IdxTest : public ::testing::Test {
 protected:
  IdxTest() {
    write(images_, good_images_);
    write(labels_, good_labels_);
  }

  void write(const std::string& name, const std::string& content) const { folder_.write(name, content); }
  std::shared_ptr<Dataset> read() const { return read_idx(folder_ / images_, folder_ / labels_); }

  // The message of the DataError that reading ends with; empty when it succeeds.
  std::string failure() const {
    try {
      read();
    } catch (const DataError& error) {
      return error.what();
    }
    return {};
  }
  std::string failure_of_images(const std::string& content) const {
    write(images_, content);
    return failure();
  }
  std::string failure_of_labels(const std::string& content) const {
    write(labels_, content);
    return failure();
  }

  // Checks all samples against the content of the good files.
  void expect_good(const Dataset& dataset) const {
    ASSERT_EQ(dataset.size(), 3);
    std::vector<std::byte> image(8);
    std::int64_t label[2] = {};
    const std::vector<std::int64_t> wanted{2, 0};
    dataset.read(wanted, std::vector<std::byte*>{image.data(), reinterpret_cast<std::byte*>(label)});
    EXPECT_EQ(std::memcmp(image.data(), good_images_.data() + 16 + 8, 4), 0);
    EXPECT_EQ(std::memcmp(image.data() + 4, good_images_.data() + 16, 4), 0);
    EXPECT_EQ(label[0], 255);
    EXPECT_EQ(label[1], 7);
  }

  const TemporaryFolder folder_;
  const std::string images_ = "images", labels_ = "labels";
  const std::string good_images_ = idx(8, {3, 2, 2}, counting(12));
  const std::string good_labels_ = idx(8, {3}, {'\x07', '\0', '\xff'});
};

TEST_F(IdxTest, PlainFilesAreRead) {
  const auto dataset = read();
  ASSERT_EQ(dataset->fields().size(), 2u);
  EXPECT_EQ(dataset->fields()[0].name, "image");
  EXPECT_EQ(dataset->fields()[0].type, ElementType::kUint8);
  EXPECT_EQ(dataset->fields()[0].shape, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(dataset->fields()[1].name, "label");
  EXPECT_EQ(dataset->fields()[1].type, ElementType::kInt64);
  EXPECT_TRUE(dataset->fields()[1].shape.empty());
  expect_good(*dataset);
}

TEST_F(IdxTest, GzipIsToldByContentNotByName) {
  write(images_, gzip(good_images_));
  expect_good(*read());
  std::filesystem::rename(folder_ / labels_, folder_ / "labels.gz");
  expect_good(*read_idx(folder_ / images_, folder_ / "labels.gz"));
}

TEST_F(IdxTest, GzipOfSeveralMembersIsOneFile) {
  write(images_, gzip(good_images_.substr(0, 9)) + gzip(good_images_.substr(9)));
  expect_good(*read());
}

TEST_F(IdxTest, ImagesOfOtherDimensionsAreRead) {
  write(images_, idx(8, {3, 2, 2, 5}, counting(60)));
  EXPECT_EQ(read()->fields()[0].shape, (std::vector<std::int64_t>{2, 2, 5}));
  write(images_, idx(8, {3, 7}, counting(21)));
  EXPECT_EQ(read()->fields()[0].shape, (std::vector<std::int64_t>{7}));
}

TEST_F(IdxTest, MoreLabelsThanOneChunk) {
  constexpr std::uint32_t kCount = 200'001;
  write(images_, gzip(idx(8, {kCount, 1}, std::string(kCount, '\5'))));
  write(labels_, gzip(idx(8, {kCount}, counting(kCount))));
  const auto dataset = read();
  std::byte image{};
  std::int64_t label = 0;
  for (const std::int64_t i : {65'535, 65'536, 131'072, 200'000}) {
    dataset->read({&i, 1}, std::vector<std::byte*>{&image, reinterpret_cast<std::byte*>(&label)});
    EXPECT_EQ(label, (i + 1) % 256);
  }
}

TEST_F(IdxTest, SharingHappensOnceAndOthersOnlyMap) {
  std::vector<std::string> names;
  UniqueFd fd;
  const auto first = read_idx(folder_ / images_, folder_ / labels_, [&](const auto& name, const auto& make) {
    names.push_back(name);
    auto memory = make();
    fd = duplicate(memory.fd());
    return memory;
  });
  std::filesystem::remove(folder_ / images_);  // the second rank does not touch the files
  const auto second = read_idx(folder_ / images_, folder_ / labels_, [&](const auto& name, const auto&) {
    names.push_back(name);
    return SharedMemory::map(std::move(fd), false);
  });
  EXPECT_EQ(names.at(0), names.at(1));
  expect_good(*first);
  expect_good(*second);
  EXPECT_EQ(second->fields()[0].shape, (std::vector<std::int64_t>{2, 2}));
}

TEST_F(IdxTest, TruncatedAnywhereNamesFileAndOffset) {
  for (std::size_t length = 1; length < good_images_.size(); ++length) {
    EXPECT_THAT(failure_of_images(good_images_.substr(0, length)),
                AllOf(HasSubstr((folder_ / images_).string() + ": offset " + std::to_string(length) + ": truncated")));
  }
  write(images_, good_images_);
  for (std::size_t length = 1; length < good_labels_.size(); ++length) {
    EXPECT_THAT(failure_of_labels(good_labels_.substr(0, length)),
                HasSubstr((folder_ / labels_).string() + ": offset " + std::to_string(length) + ": truncated"));
  }
}

TEST_F(IdxTest, AnEmptyFileIsSaidToBeEmpty) {
  EXPECT_THAT(failure_of_images(""), HasSubstr((folder_ / images_).string() + ": the file is empty"));
  EXPECT_THAT(failure_of_images(gzip("")), HasSubstr("offset 0 of the decompressed data: the file is empty"));
  EXPECT_THAT(failure_of_images(idx(8, {0, 2, 2}, "")),
              HasSubstr("offset 4: the file is empty: it holds no sample (dimension 1 is 0)"));
}

TEST_F(IdxTest, TruncatedBeforeCompressionNamesTheDecompressedOffset) {
  for (std::size_t length = 1; length < good_images_.size(); ++length) {
    EXPECT_THAT(failure_of_images(gzip(good_images_.substr(0, length))),
                HasSubstr(images_ + ": offset " + std::to_string(length) + " of the decompressed data: truncated"));
  }
}

TEST_F(IdxTest, TruncatedGzipIsAnErrorAtEveryLength) {
  const auto packed = gzip(good_images_);
  for (std::size_t length = 0; length < packed.size(); ++length) {
    EXPECT_THAT(failure_of_images(packed.substr(0, length)),
                ::testing::AnyOf(HasSubstr("truncated: the file ends inside its gzip data (byte " +
                                           std::to_string(length) + " of the file)"),
                                 HasSubstr("truncated: a file of this size cannot hold it"), HasSubstr("magic number"),
                                 HasSubstr("the file is empty")))
        << length;
  }
}

TEST_F(IdxTest, EveryFlippedBitOfGzipIsCaughtOrHarmless) {
  const auto packed = gzip(good_images_);
  int caught = 0;
  for (std::size_t bit = 0; bit < packed.size() * 8; ++bit) {
    auto damaged = packed;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    const auto message = failure_of_images(damaged);
    if (message.empty()) {
      expect_good(*read());  // such as a time stamp
    } else {
      EXPECT_THAT(message, AllOf(HasSubstr(": offset "), HasSubstr((folder_ / images_).string())));
      ++caught;
    }
  }
  EXPECT_GT(caught, static_cast<int>(packed.size() - 10) * 8 - 8);  // all but bits of the 10 bytes of gzip's header
}

TEST_F(IdxTest, DamagedCheckSumIsCaughtAfterTheLastByte) {
  auto packed = gzip(good_images_);
  packed[packed.size() - 6] = static_cast<char>(packed[packed.size() - 6] ^ 1);
  EXPECT_THAT(failure_of_images(packed),
              AllOf(HasSubstr("offset 28 of"), HasSubstr("damaged gzip data: incorrect data check")));
}

TEST_F(IdxTest, BytesAfterTheEnd) {
  EXPECT_THAT(failure_of_images(good_images_ + "xyz"), HasSubstr("offset 28: 3 bytes after the end of the data"));
  EXPECT_THAT(failure_of_images(gzip(good_images_ + "x")),
              HasSubstr("offset 28 of the decompressed data: bytes after the end"));
  EXPECT_THAT(failure_of_images(gzip(good_images_) + "x"), HasSubstr("bytes after the end of the gzip data"));
  write(images_, good_images_);
  EXPECT_THAT(failure_of_labels(good_labels_ + "y"), AllOf(HasSubstr(labels_), HasSubstr("offset 11: 1 bytes after")));
}

TEST_F(IdxTest, AWrongMagicNumberIsRefused) {
  EXPECT_THAT(failure_of_images("\x89PNG\r\n\x1a\n, and more"),
              AllOf(HasSubstr(images_ + ": offset 0: magic number 0x89504e47")));
}

TEST_F(IdxTest, ElementsThatAreNoBytesAreRefused) {
  EXPECT_THAT(failure_of_images(idx(0x0d, {3, 2, 2}, counting(48))),
              HasSubstr("offset 2: element type 0x0d (float), but only 0x08"));
  EXPECT_THAT(failure_of_images(idx(0x55, {3, 2, 2}, counting(12))), HasSubstr("element type 0x55 (unknown)"));
}

TEST_F(IdxTest, ExchangedFilesAreRecognized) {
  write(images_, good_labels_);
  try {
    read();
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("offset 3: 1 dimension, but images have at least 2"));
    EXPECT_THAT(error.remedy(), HasSubstr("exchanged"));
  }
  write(images_, good_images_);
  EXPECT_THAT(failure_of_labels(good_images_), HasSubstr("offset 3: 3 dimensions, but labels have 1"));
}

TEST_F(IdxTest, CountsThatDifferAreRefused) {
  EXPECT_THAT(failure_of_labels(idx(8, {4}, counting(4))),
              AllOf(HasSubstr(labels_ + ": offset 4: 4 labels"), HasSubstr(images_), HasSubstr("3 images")));
}

TEST_F(IdxTest, AnEmptyDimensionIsRefused) {
  EXPECT_THAT(failure_of_images(idx(8, {3, 0, 2}, "")), HasSubstr("offset 8: dimension 2 is 0: its samples are empty"));
}

TEST_F(IdxTest, HugeDimensionsTakeNoMemory) {
  const std::uint32_t huge = 0xffffffff;
  EXPECT_THAT(failure_of_images(idx(8, {huge, huge, huge}, "x")), HasSubstr("more than 2^64"));
  EXPECT_THAT(failure_of_images(idx(8, {3, huge, 1000}, "x")), HasSubstr("truncated"));
  EXPECT_THAT(failure_of_images(gzip(idx(8, {3, huge, 1000}, "x"))), HasSubstr("a file of this size cannot hold it"));
}

TEST_F(IdxTest, FilesThatCannotBeOpened) {
  std::filesystem::remove(folder_ / labels_);
  try {
    read();
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr((folder_ / labels_).string()), HasSubstr("No such file")));
    EXPECT_FALSE(error.remedy().empty());
  }
  std::filesystem::create_directory(folder_ / labels_);
  EXPECT_THAT(failure(), HasSubstr("not a regular file"));
}

TEST(FashionMnist, AsDebianShipsIt) {
  const std::filesystem::path folder = "/usr/share/datasets/fashion-mnist";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "package dataset-fashion-mnist is not installed";
  const auto training = read_idx(folder / "train-images-idx3-ubyte.gz", folder / "train-labels-idx1-ubyte.gz");
  const auto test = read_idx(folder / "t10k-images-idx3-ubyte.gz", folder / "t10k-labels-idx1-ubyte.gz");
  EXPECT_EQ(training->size(), 60'000);
  EXPECT_EQ(test->size(), 10'000);
  EXPECT_EQ(training->fields()[0].shape, (std::vector<std::int64_t>{28, 28}));

  std::vector<std::int64_t> all(60'000), labels(60'000), counts(10);
  std::iota(all.begin(), all.end(), 0);
  std::vector<unsigned char> images(60'000 * 784);
  training->read(all, std::vector<std::byte*>{reinterpret_cast<std::byte*>(images.data()),
                                              reinterpret_cast<std::byte*>(labels.data())});
  for (const auto label : labels) ++counts.at(static_cast<std::size_t>(label));
  EXPECT_EQ(counts, std::vector<std::int64_t>(10, 6'000));
  EXPECT_EQ(std::vector<std::int64_t>(labels.begin(), labels.begin() + 10),
            (std::vector<std::int64_t>{9, 0, 0, 3, 0, 2, 7, 2, 5, 5}));
  const double mean = std::accumulate(images.begin(), images.end(), 0.0) / (255.0 * static_cast<double>(images.size()));
  EXPECT_NEAR(mean, 0.2860, 0.0001);  // the figure that everybody normalises with
}

}  // namespace
}  // namespace dtrain::data
