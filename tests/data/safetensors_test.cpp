// Data sets in safetensors files, and headers that lie.
#include "dtrain/data/safetensors.h"

#include <cmath>

#include <gmock/gmock.h>

#include "file_test.h"

namespace dtrain::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using TensorShape = std::vector<std::int64_t>;

std::string safetensors(const std::string& header, const std::string& payload) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + payload;
}

const std::string kGoodHeader = R"({"__metadata__": {"made": "here"},
  "target": {"dtype": "U8", "shape": [3], "data_offsets": [24, 27]},
  "features": {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24]},
  "none": {"dtype": "BF16", "shape": [0, 7], "data_offsets": [27, 27]}}   )";

class SafetensorsTest : public FileTest {
 protected:
  std::string refused(const std::string& content, const std::string& features = "features",
                      const std::string& target = "target") const {
    const auto path = write("file", content);
    return failure([&] { load_safetensors(path, features, target); });
  }
  std::string refused_header(const std::string& header, std::size_t bytes) const {
    return refused(safetensors(header, std::string(bytes, 'x')));
  }

  const std::string good_ = safetensors(kGoodHeader, bytes_of<float>({1, 2, 3, 4, 5, 6}) + "\7\xff\11");
};

TEST_F(SafetensorsTest, FeaturesAndTargetComeAsTheyAre) {
  const auto dataset = load_safetensors(write("file", good_), "features", "target");
  ASSERT_EQ(dataset->size(), 3);
  EXPECT_EQ(dataset->fields()[0].name, "features");
  EXPECT_EQ(dataset->fields()[0].type, ElementType::kFloat32);
  EXPECT_EQ(dataset->fields()[0].shape, TensorShape{2});
  EXPECT_EQ(dataset->fields()[1].name, "target");
  EXPECT_EQ(dataset->fields()[1].type, ElementType::kUint8);
  EXPECT_EQ(read_field<float>(*dataset, 0, {2, 0}), (std::vector<float>{5, 6, 1, 2}));
  EXPECT_EQ(read_field<std::uint8_t>(*dataset, 1, {1, 2}), (std::vector<std::uint8_t>{255, 9}));
}

TEST_F(SafetensorsTest, NarrowTypesAreReadAsWiderOnes) {
  // 1, -2, the least and the greatest numbers of float16, infinity, NaN.
  const std::vector<std::uint16_t> halves{0x3c00, 0xc000, 0x0001, 0x8001, 0x7bff, 0x7c00, 0x7e00, 0x0400};
  const std::vector<float> values{1, -2, 0x1p-24f, -0x1p-24f, 65504, INFINITY, NAN, 0x1p-14f};
  const std::string header = R"({"half": {"dtype": "F16", "shape": [4, 2], "data_offsets": [0, 16]},
    "mask": {"dtype": "BOOL", "shape": [4], "data_offsets": [16, 20]},
    "short": {"dtype": "I16", "shape": [4], "data_offsets": [20, 28]},
    "brain": {"dtype": "BF16", "shape": [4], "data_offsets": [28, 36]},
    "wide": {"dtype": "U32", "shape": [4], "data_offsets": [36, 52]},
    "byte": {"dtype": "I8", "shape": [4], "data_offsets": [52, 56]}})";
  const auto path = write("file", safetensors(header, bytes_of<std::uint16_t>(halves) + std::string("\1\0\0\1", 4) +
                                                          bytes_of<std::int16_t>({-100, 7, -32768, 32767}) +
                                                          bytes_of<std::uint16_t>({0x3f80, 0xc0a0, 0, 0x7f80}) +
                                                          bytes_of<std::uint32_t>({1, 0xffffffff, 3, 4}) +
                                                          bytes_of<std::int8_t>({-128, 127, 0, -1})));
  const std::vector<std::string> more{"mask", "brain", "wide", "byte"};
  for (const auto& dataset :
       {load_safetensors(path, "half", "short", no_sharing(), more), open_safetensors(path, "half", "short", more)}) {
    const auto read = read_field<float>(*dataset, 0, {0, 1, 2, 3});
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_TRUE(read[i] == values[i] || (std::isnan(read[i]) && std::isnan(values[i]))) << i << ": " << read[i];
    }
    EXPECT_EQ(dataset->fields()[0].shape, TensorShape{2});
    EXPECT_EQ(read_field<std::int32_t>(*dataset, 1, {3, 0, 2}), (std::vector<std::int32_t>{32767, -100, -32768}));
    EXPECT_EQ(dataset->fields()[2].type, ElementType::kUint8);
    EXPECT_EQ(read_field<std::uint8_t>(*dataset, 2, {0, 1, 3}), (std::vector<std::uint8_t>{1, 0, 1}));
    EXPECT_EQ(read_field<float>(*dataset, 3, {0, 1, 3}), (std::vector<float>{1, -5, INFINITY}));
    EXPECT_EQ(read_field<std::int64_t>(*dataset, 4, {1}), std::vector<std::int64_t>{0xffffffff});
    EXPECT_EQ(read_field<std::int32_t>(*dataset, 5, {0, 1}), (std::vector<std::int32_t>{-128, 127}));
  }
  EXPECT_EQ(bool_tensors(path), std::vector<std::string>{"mask"});
}

TEST_F(SafetensorsTest, EntriesAreListedInTheOrderOfTheFile) {
  const SafetensorsFile file(write("file", good_));
  ASSERT_EQ(file.entries().size(), 3u);
  EXPECT_EQ(file.entries()[0].name, "features");
  EXPECT_EQ(file.entries()[1].name, "target");
  EXPECT_EQ(file.entries()[2].dtype, "BF16");
  EXPECT_EQ(file.at("target").offset, good_.size() - 3);
}

TEST_F(SafetensorsTest, AHeaderThatIsWrittenIsReadBack) {
  const std::vector<SafetensorsEntry> tensors{{"b", "F32", {2, 1}, 0, 8}, {"a", "U8", {}, 0, 1}};
  const std::string text =
      R"({"__metadata__":{"z":"1","made":"here"},"b":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"U8","shape":[],"data_offsets":[8,9]}})";
  for (const std::size_t alignment : {8, 64}) {
    const std::string header = safetensors_header(tensors, {{"z", "1"}, {"made", "here"}}, alignment);
    EXPECT_EQ(header.size() % alignment, 0u);
    EXPECT_LT(header.size(), text.size() + 8 + alignment);
    EXPECT_EQ(header.substr(8, text.size()), text);
    const SafetensorsFile file(write("file", header + "12345678x"));
    EXPECT_EQ(file.at("b").offset, header.size());
    EXPECT_EQ(file.at("a").offset, header.size() + 8);
    EXPECT_EQ(file.metadata().at("made"), "here");
  }
  EXPECT_EQ(safetensors_header({}, {}).substr(8), "{}      ");
}

TEST_F(SafetensorsTest, AMissingTensorListsTheNamesThereAre) {
  EXPECT_THAT(refused(good_, "feature"), AllOf(HasSubstr("no tensor 'feature'; there are: features, target, none"),
                                               HasSubstr("did you mean 'features'?")));
  EXPECT_THAT(refused(safetensors("{}", "")), HasSubstr("there are none"));
}

TEST_F(SafetensorsTest, TensorsThatMakeNoDataSet) {
  EXPECT_THAT(refused_header(R"({"features": {"dtype": "U64", "shape": [2], "data_offsets": [0, 16]}})", 16),
              HasSubstr("'features' is of type U64, but data sets are read of BOOL, I8 to I64, U8 to U32, F16, BF16"));
  EXPECT_THAT(refused_header(R"({"features": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                                 "target": {"dtype": "F32", "shape": [3], "data_offsets": [8, 20]}})",
                             20),
              HasSubstr("'target' has 3 samples, but 'features' has 2"));
  EXPECT_THAT(refused_header(R"({"features": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
                                 "target": {"dtype": "F32", "shape": [0], "data_offsets": [4, 4]}})",
                             4),
              HasSubstr("'features' has no dimensions"));
  EXPECT_THAT(refused_header(R"({"features": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                                 "target": {"dtype": "F32", "shape": [1, 0], "data_offsets": [4, 4]}})",
                             4),
              HasSubstr("'target' is empty: its dimension 2 is 0"));
}

TEST_F(SafetensorsTest, TruncatedAnywhereNamesFileAndOffset) {
  EXPECT_THAT(refused(""), HasSubstr((folder_ / "file").string() + ": the file is empty"));
  for (std::size_t length = 1; length < good_.size(); ++length) {
    EXPECT_THAT(refused(good_.substr(0, length)), HasSubstr((folder_ / "file").string() + ": offset ")) << length;
  }
  EXPECT_THAT(refused(good_ + "abc"),
              HasSubstr("offset " + std::to_string(good_.size()) + ": 3 bytes belong to no tensor"));
}

TEST_F(SafetensorsTest, HeadersThatLie) {
  const auto one = [&](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return refused_header(
        R"({"a": {"dtype": )" + dtype + R"(, "shape": )" + shape + R"(, "data_offsets": )" + offsets + "}}", 8);
  };
  EXPECT_THAT(one(R"("F32")", "[2]", "[0, 8]"), HasSubstr("no tensor 'features'; there are: a"));
  EXPECT_THAT(one(R"("F99")", "[2]", "[0, 8]"), HasSubstr("tensor 'a' has the unknown type \"F99\""));
  EXPECT_THAT(one("7", "[2]", "[0, 8]"), HasSubstr("unknown type 7"));
  EXPECT_THAT(one(R"("F32")", "[3]", "[0, 8]"), HasSubstr("lies at bytes 0 to 8 of 8, its shape needs 12"));
  EXPECT_THAT(one(R"("F32")", "[-2]", "[0, 8]"), HasSubstr("-2 where a whole number belongs"));
  EXPECT_THAT(one(R"("F32")", "[2.0]", "[0, 8]"), HasSubstr("2.0 where a whole number belongs"));
  EXPECT_THAT(one(R"("F32")", "[18446744073709551615]", "[0, 8]"), HasSubstr("impossible shape"));
  EXPECT_THAT(one(R"("F32")", "[4294967296, 4294967296, 0]", "[0, 0]"), HasSubstr("impossible shape"));
  EXPECT_THAT(one(R"("F32")", "2", "[0, 8]"), HasSubstr("2 where its shape belongs"));
  EXPECT_THAT(one(R"("F32")", "[2]", "[0]"), HasSubstr("not two numbers"));
  EXPECT_THAT(one(R"("F32")", "[2]", "[8, 0]"), HasSubstr("8 to 0"));
  EXPECT_THAT(one(R"("F32")", "[2]", "[4, 12]"), HasSubstr("4 to 12"));
  EXPECT_THAT(one(R"("F32")", "[1]", "[0, 4]"), HasSubstr("4 bytes belong to no tensor"));
  EXPECT_THAT(one(R"("F32")", "[1]", "[4, 8]"), HasSubstr("4 bytes belong to no tensor"));
  EXPECT_THAT(refused_header(R"({"a": {"dtype": "U8", "shape": [5], "data_offsets": [0, 5]},
                                 "b": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}})",
                             8),
              HasSubstr("'b' and the one before it overlap"));
  EXPECT_THAT(refused_header(R"({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]},
                                 "a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}})",
                             8),
              HasSubstr("tensor 'a' is there twice"));
  EXPECT_THAT(refused_header(R"({"a": 7})", 8), HasSubstr("tensor 'a' has no dtype"));
  EXPECT_THAT(refused_header(R"({"__metadata__": {"a": 1}})", 0), HasSubstr("__metadata__"));
}

TEST_F(SafetensorsTest, WhatIsNoHeaderAtAll) {
  EXPECT_THAT(refused("PK\3\4 a zip file, say"), HasSubstr("is past the end"));
  EXPECT_THAT(refused_header("[1]", 0), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(refused_header("{\"a\": }", 0), HasSubstr("offset 14: the header is not valid JSON"));
  EXPECT_THAT(refused_header("{\"a\":" + std::string(100'000, '['), 0), HasSubstr("nested too deeply"));
  EXPECT_THAT(refused_header("{\"\xff\": 1}", 0), HasSubstr("not valid JSON"));
  const std::uint64_t length = 100'000'001;  // a sparse file, so that only the limit can refuse it
  const auto path = write("file", std::string(reinterpret_cast<const char*>(&length), sizeof length));
  std::filesystem::resize_file(path, length + 8);
  EXPECT_THAT(failure([&] { SafetensorsFile file(path); }), HasSubstr("over the format's limit of 100000000"));
}

}  // namespace
}  // namespace dtrain::data
