// .npy files as numpy describes them, and broken in every place.
#include "dtrain/data/data_sets.h"

#include <gmock/gmock.h>
#include <zlib.h>

#include "file_test.h"

namespace dtrain::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Shape = std::vector<std::int64_t>;

std::string npy(const std::string& header, const std::string& payload, int major = 1) {
  std::string file = "\x93NUMPY" + std::string{static_cast<char>(major), '\0'};
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) file += static_cast<char>(header.size() >> 8 * i & 255);
  return file + header + payload;
}

std::string dictionary(const std::string& descr, const std::string& shape) {
  return "{'descr': " + descr + ", 'fortran_order': False, 'shape': " + shape + ", }\n";
}

class NpyTest : public FileTest {
 protected:
  NpyTest() {
    write("x", good_features_);
    write("y", good_target_);
  }
  std::shared_ptr<Dataset> load() const { return load_npy(folder_ / "x", folder_ / "y"); }
  std::string refused(const std::string& features) const {
    write("x", features);
    return failure([&] { load(); });
  }

  const std::string good_features_ = npy(dictionary("'<f4'", "(3, 2)"), bytes_of<float>({1, 2, 3, 4, 5, 6}));
  const std::string good_target_ = npy(dictionary("'<i8'", "(3,)"), bytes_of<std::int64_t>({7, -8, 9}));
};

TEST_F(NpyTest, FeaturesAndTargetComeAsTheyAre) {
  const auto dataset = load();
  ASSERT_EQ(dataset->size(), 3);
  ASSERT_EQ(dataset->fields().size(), 2u);
  EXPECT_EQ(dataset->fields()[0].name, "features");
  EXPECT_EQ(dataset->fields()[0].type, ElementType::kFloat32);
  EXPECT_EQ(dataset->fields()[0].shape, Shape{2});
  EXPECT_EQ(dataset->fields()[1].name, "target");
  EXPECT_EQ(dataset->fields()[1].type, ElementType::kInt64);
  EXPECT_EQ(dataset->fields()[1].shape, Shape{});
  EXPECT_EQ(read_field<float>(*dataset, 0, {2, 0}), (std::vector<float>{5, 6, 1, 2}));
  EXPECT_EQ(read_field<std::int64_t>(*dataset, 1, {2, 0, 1}), (std::vector<std::int64_t>{9, 7, -8}));
}

TEST_F(NpyTest, VersionsOneToThreeAndOtherSpacing) {
  for (const int major : {1, 2, 3}) {
    write("x", npy("{\"shape\":(3,1),'fortran_order':False , \"descr\":'<f8'}   ", bytes_of<double>({1, 2, 3}), major));
    EXPECT_EQ(read_field<double>(*load(), 0, {1}), std::vector<double>{2}) << major;
  }
  EXPECT_THAT(refused(npy(dictionary("'<f4'", "(3,)"), "", 4)), HasSubstr("offset 6: format version 4.0"));
}

TEST_F(NpyTest, GzipIsReadToo) {
  const auto path = (folder_ / "x").string();
  const gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, good_features_.data(), static_cast<unsigned>(good_features_.size()));
  gzclose(file);
  EXPECT_EQ(read_field<float>(*load(), 0, {1}), (std::vector<float>{3, 4}));
}

TEST_F(NpyTest, SharingHappensOnceAndOthersOnlyMap) {
  UniqueFd fd;
  const auto first = load_npy(folder_ / "x", folder_ / "y", [&](const auto&, const auto& make) {
    auto memory = make();
    fd = duplicate(memory.fd());
    return memory;
  });
  std::filesystem::remove(folder_ / "x");
  const auto second = load_npy(folder_ / "x", folder_ / "y",
                               [&](const auto&, const auto&) { return SharedMemory::map(std::move(fd), false); });
  EXPECT_EQ(read_field<float>(*second, 0, {2}), (std::vector<float>{5, 6}));
  EXPECT_EQ(second->fields()[0].name, "features");
}

TEST_F(NpyTest, WhatIsNotReadIsNamedWithWhatWouldDo) {
  const auto of_type = [&](const std::string& descr) { return refused(npy(dictionary(descr, "(3,)"), "")); };
  const auto at = (folder_ / "x").string() + ": offset 20: ";
  EXPECT_THAT(of_type("'<f2'"), AllOf(HasSubstr(at + "element type '<f2'"), HasSubstr("astype('float32')")));
  EXPECT_THAT(of_type("'<c16'"), HasSubstr(at + "element type '<c16', but only uint8, int32, int64, float32 and"));
  EXPECT_THAT(of_type("'>f4'"), AllOf(HasSubstr(at + "big-endian elements ('>f4')"), HasSubstr("astype('<f4')")));
  EXPECT_THAT(of_type("'|O'"), HasSubstr(at + "Python objects ('|O')"));
  EXPECT_THAT(of_type("[('a', '<f4')]"), HasSubstr(at + "a structured array"));
  EXPECT_THAT(refused(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (3, 2), }", "")),
              AllOf(HasSubstr("offset 44: Fortran order, but only C order"), HasSubstr("ascontiguousarray")));
  EXPECT_THAT(refused(npy(dictionary("'<f4'", "()"), "1234")), HasSubstr("without dimensions"));
  EXPECT_THAT(refused(npy(dictionary("'<f4'", "(3, 0)"), "")), HasSubstr("dimension 2 is 0"));
}

TEST_F(NpyTest, AnEmptyFileIsSaidToBeEmpty) {
  EXPECT_THAT(refused(""), HasSubstr((folder_ / "x").string() + ": the file is empty"));
  EXPECT_THAT(refused(npy(dictionary("'<f4'", "(0, 3)"), "")),
              HasSubstr("the file is empty: it holds no sample (dimension 1 is 0)"));
}

TEST_F(NpyTest, TruncatedAnywhereNamesFileAndOffset) {
  for (std::size_t length = 1; length < good_features_.size(); ++length) {
    EXPECT_THAT(refused(good_features_.substr(0, length)),
                HasSubstr((folder_ / "x").string() + ": offset " + std::to_string(length) + ": truncated"));
  }
  EXPECT_THAT(refused(good_features_ + "abc"),
              HasSubstr("offset " + std::to_string(good_features_.size()) + ": 3 bytes after the end"));
}

TEST_F(NpyTest, EveryChangedByteOfTheHeaderIsReadOrRefused) {
  const auto header = good_features_.size() - 24;
  int refusals = 0;
  for (std::size_t i = 0; i < header; ++i) {
    for (const char byte : {'\0', '\'', '9', ')', '\xff'}) {
      auto damaged = good_features_;
      damaged[i] = byte;
      const auto message = refused(damaged);
      if (!message.empty()) ++refusals;
      if (!message.empty()) {
        EXPECT_THAT(message, HasSubstr("offset "));
      }
    }
  }
  EXPECT_GT(refusals, static_cast<int>(header) * 4);  // the rest is white space next to white space
}

TEST_F(NpyTest, DictionariesThatSayTooMuchOrTooLittle) {
  const auto of_text = [&](const std::string& text) { return refused(npy(text, "")); };
  EXPECT_THAT(of_text("{'descr': '<f4', 'shape': (3,)}"), HasSubstr("has no key 'fortran_order'"));
  EXPECT_THAT(of_text("{'descr': '<f4', 'descr': '<f4'}"), HasSubstr("offset 27: the header's key 'descr'"));
  EXPECT_THAT(of_text("{'colour': 'red'}"), HasSubstr("key 'colour' is unknown"));
  EXPECT_THAT(of_text(dictionary("'<f4'", "(3,)") + "x"), HasSubstr("text after the end"));
  EXPECT_THAT(of_text(dictionary("'<f4'", "(3, -2)")), HasSubstr("no dimension from 0"));
  EXPECT_THAT(of_text(dictionary("'<f4'", "(99999999999999999999,)")), HasSubstr("no dimension from 0"));
  EXPECT_THAT(of_text("[]"), HasSubstr("offset 10: the header has no '{' here"));
  EXPECT_THAT(of_text(""), HasSubstr("no '{' here"));
}

TEST_F(NpyTest, HugeClaimsTakeNoMemory) {
  EXPECT_THAT(refused(npy(dictionary("'<f8'", "(3, 9223372036854775807, 2)"), "x")), HasSubstr("more than 2^64"));
  EXPECT_THAT(refused(npy(dictionary("'<f8'", "(3, 1000000000000)"), "x")), HasSubstr("truncated"));
  EXPECT_THAT(refused("\x93NUMPY" + std::string("\2\0\xff\xff\xff\xff", 6)), HasSubstr("header of 4294967295 bytes"));
}

TEST_F(NpyTest, CountsThatDiffer) {
  write("y", npy(dictionary("'<i8'", "(2,)"), bytes_of<std::int64_t>({1, 2})));
  EXPECT_THAT(failure([&] { load(); }), AllOf(HasSubstr((folder_ / "y").string() + ": offset "), HasSubstr("2 samples"),
                                              HasSubstr((folder_ / "x").string()), HasSubstr(") 3")));
}

}  // namespace
}  // namespace dtrain::data
