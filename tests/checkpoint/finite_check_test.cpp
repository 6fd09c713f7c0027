// Which weights the saver finds not to be finite.
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint_harness.h"
#include "saver/image_writer.h"

namespace dtrain::checkpoints {
namespace {

using testing::ElementsAre;

struct TensorBytes {
  std::string name, type;
  std::string bytes;
};

template <typename Value>
std::string bytes_of(const std::vector<Value>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value)};
}

std::string safetensors(const std::vector<TensorBytes>& tensors) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const TensorBytes& tensor : tensors) {
    header[tensor.name] = {
        {"dtype", tensor.type}, {"shape", {1}}, {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  const std::string text = to_line(header);
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data;
}

// Looks at the file in pieces of so many bytes.
std::string found_in(const std::string& file, FileImage image = {}, std::size_t piece = 7) {
  image.bytes = file.size();
  if (!image.weights) image.weights = "";
  FiniteCheck check(image, reinterpret_cast<const std::byte*>(file.data()));
  for (std::size_t at = 0; at < file.size(); at += piece) check.look(at, std::min(piece, file.size() - at));
  return check.found();
}

TEST(FiniteCheck, KnowsEveryTypesLimits) {
  const auto with = [](const std::string& type, const std::string& bytes) {
    return found_in(safetensors({{"weight", type, bytes}}));
  };
  using Bits16 = std::vector<std::uint16_t>;
  EXPECT_EQ(with("F16", bytes_of(Bits16{0, 0x7bff, 0xfbff, 0x0001, 0x8000})), "");
  EXPECT_EQ(with("BF16", bytes_of(Bits16{0, 0x7f7f, 0xff7f, 0x0001, 0x8000})), "");
  for (const std::uint16_t bits : {0x7c00, 0xfc00, 0x7c01, 0xfe00}) {
    EXPECT_EQ(with("F16", bytes_of(Bits16{1, bits})), "weight") << bits;
  }
  for (const std::uint16_t bits : {0x7f80, 0xff80, 0x7f81, 0xffc0}) {
    EXPECT_EQ(with("BF16", bytes_of(Bits16{1, bits})), "weight") << bits;
  }
  const float large = std::numeric_limits<float>::max(), infinite = std::numeric_limits<float>::infinity();
  EXPECT_EQ(with("F32", bytes_of(std::vector<float>{large, -large, 1e-45f, -0.f})), "");
  for (const float value : {infinite, -infinite, std::nanf(""), -std::nanf("7")}) {
    EXPECT_EQ(with("F32", bytes_of(std::vector<float>{1, value})), "weight") << value;
    EXPECT_EQ(with("F64", bytes_of(std::vector<double>{1, value})), "weight") << value;
  }
  EXPECT_EQ(with("F64", bytes_of(std::vector<double>{std::numeric_limits<double>::max(), -1e300, 0})), "");
  EXPECT_EQ(with("I64", bytes_of(std::vector<std::int64_t>{-1, 0x7ff0000000000000})), "") << "whole numbers";
}

// Tensors begin anywhere, and a value may begin in one piece and end in another.
TEST(FiniteCheck, FindsOneAtEveryPlace) {
  for (std::size_t place = 0; place < 40; ++place) {
    std::vector<float> values(40, 1.5f);
    values[place] = std::nanf("");
    const std::string file = safetensors({{"a", "U8", "\xff\xff\xff"},
                                          {"b", "F32", bytes_of(std::vector<float>(11, 2.f))},
                                          {"c", "F32", bytes_of(values)},
                                          {"d", "F32", bytes_of(std::vector<float>(5, 3.f))}});
    for (const std::size_t piece : {1u, 2u, 5u, 64u, 100'000u}) {
      ASSERT_EQ(found_in(file, {}, piece), "c") << "value " << place << ", pieces of " << piece << " bytes";
    }
  }
}

TEST(FiniteCheck, NamesTheFirstOfTheFile) {
  const std::string bad = bytes_of(std::vector<float>{std::nanf("")});
  EXPECT_EQ(
      found_in(safetensors({{"z", "F32", bytes_of(std::vector<float>{1})}, {"m", "F32", bad}, {"a", "F32", bad}})),
      "m");
}

TEST(FiniteCheck, WhatIsFixedMayBeInfinite) {
  const FileImage image{.may_be_infinite = {"mask"}};
  const auto with = [&](const std::string& name, float value) {
    return found_in(safetensors({{name, "F32", bytes_of(std::vector<float>{value})}}), image);
  };
  EXPECT_EQ(with("mask", -std::numeric_limits<float>::infinity()), "");
  EXPECT_EQ(with("mask", std::nanf("")), "mask");
  EXPECT_EQ(with("weight", -std::numeric_limits<float>::infinity()), "weight");
}

TEST(FiniteCheck, LooksAtWeightsAlone) {
  const std::string bad = bytes_of(std::vector<float>{std::nanf("")});
  const FileImage image{.weights = "step/parameters/"};
  EXPECT_EQ(found_in(safetensors({{"step/gradients/w", "F32", bad}}), image), "");
  EXPECT_EQ(found_in(safetensors({{"step/parameters/w", "F32", bad}}), image), "step/parameters/w");
  for (const std::string& none : {std::string(), std::string("x"), std::string(100, '\xff'),
                                  safetensors({}).substr(0, 20), std::string(8, '\0')}) {
    EXPECT_EQ(found_in(none), "");
  }
}

// Of the saver's process, through the manifest, to what it keeps.
TEST(FiniteSaver, KeepsTheNewestWithFiniteWeights) {
  TemporaryFolder folder;
  const std::filesystem::path storage = folder / "storage";
  const auto model = [](float value) {
    return safetensors({{"norm.bias", "F32", bytes_of(std::vector<float>(3'000'000, 1.f))},
                        {"layer.weight", "F32", bytes_of(std::vector<float>{1, 2, value})}});
  };
  TestSnapshot snapshot({{kModelFile, model(0).size()}});
  Saver saver(options_for(storage, {1, 1}), snapshot.memory());
  std::uint64_t number = 0;
  const auto save = [&](std::int64_t step, float value, double loss) {
    const std::string bytes = model(value);
    std::memcpy(snapshot.memory().data(), bytes.data(), bytes.size());
    snapshot.mark_copied(++number);
    About about = about_step(step);
    about.metric = "loss";
    about.metric_value = loss;
    SaveRequest request = request_for(snapshot, number, about);
    request.files.front().weights = "";
    saver.save(request);
    const auto result = saver.wait(kPatience);
    EXPECT_TRUE(result && result->error.empty());
    return result ? result->not_finite : "no result";
  };
  EXPECT_EQ(save(1, 1, 0.2), "");
  EXPECT_EQ(save(2, 1, 0.7), "");
  EXPECT_EQ(save(3, std::nanf(""), 0.1), "model.safetensors: layer.weight");
  EXPECT_EQ(save(4, std::nanf(""), 0.1), "model.safetensors: layer.weight");
  EXPECT_THAT(names_in(storage), ElementsAre("step-1", "step-2", "step-4"))
      << "the best, the newest finite, the newest";
  EXPECT_EQ(list(storage).back().not_finite, "model.safetensors: layer.weight");
  const Newest newest = find_newest(storage);
  ASSERT_TRUE(newest.entry && newest.finite);
  EXPECT_EQ(newest.entry->about.step, 4);
  EXPECT_EQ(newest.finite->about.step, 2);
  EXPECT_EQ(save(5, 1, 0.9), "");
  EXPECT_THAT(names_in(storage), ElementsAre("step-1", "step-5"));
  EXPECT_FALSE(find_newest(storage).finite) << "what the newest is itself";
}

}  // namespace
}  // namespace dtrain::checkpoints
