// The formats as others write them: files made by numpy and by Python's safetensors (python_files.py).
#include <gmock/gmock.h>

#include "dtrain/base/subprocess.h"
#include "dtrain/data/data_sets.h"
#include "dtrain/data/safetensors.h"
#include "file_test.h"

namespace dtrain::data {
namespace {

using ::testing::HasSubstr;

class PythonFiles : public FileTest {
 protected:
  void SetUp() override {
    const std::filesystem::path python = DTRAIN_PEERS_PYTHON;
    if (!std::filesystem::exists(python)) GTEST_SKIP() << python << " is not there: scripts/setup.sh test";
    ProcessOptions options;
    options.command = {python, "-B", DTRAIN_SOURCE_DIR "/tests/data/python_files.py", folder_};
    ASSERT_TRUE(Process::start(options).wait().success());
  }

  // 5 samples: features 2 x 3 counting 0, 1, 2, … in steps of 1, targets 10, 11, ….
  template <typename Feature, typename Target>
  static void expect_counting(const Dataset& dataset) {
    ASSERT_EQ(dataset.size(), 5);
    EXPECT_EQ(dataset.fields()[0].shape, (std::vector<std::int64_t>{2, 3}));
    EXPECT_TRUE(dataset.fields()[1].shape.empty());
    EXPECT_EQ(read_field<Feature>(dataset, 0, {4}), (std::vector<Feature>{24, 25, 26, 27, 28, 29}));
    EXPECT_EQ(read_field<Target>(dataset, 1, {3, 0}), (std::vector<Target>{13, 10}));
  }
  std::string refused(const std::string& name) const {
    return failure([&] { load_npy(folder_ / name, folder_ / "target_int64.npy"); });
  }
};

TEST_F(PythonFiles, NumpyArraysOfEveryTypeAndVersion) {
  const auto target = folder_ / "target_int64.npy";
  expect_counting<std::uint8_t, std::int64_t>(*load_npy(folder_ / "uint8.npy", target));
  expect_counting<std::int32_t, std::int64_t>(*load_npy(folder_ / "int32.npy", target));
  expect_counting<std::int64_t, std::int64_t>(*load_npy(folder_ / "int64.npy", target));
  expect_counting<float, std::int64_t>(*load_npy(folder_ / "float32.npy", target));
  expect_counting<double, float>(*load_npy(folder_ / "float64.npy", folder_ / "target_float32.npy"));
  for (const auto* version : {"version1.npy", "version2.npy", "version3.npy"}) {
    expect_counting<float, std::int64_t>(*load_npy(folder_ / version, target));
  }
}

TEST_F(PythonFiles, NumpyArraysThatAreRefused) {
  EXPECT_THAT(refused("fortran.npy"), HasSubstr("Fortran order"));
  EXPECT_THAT(refused("big_endian.npy"), HasSubstr("big-endian"));
  EXPECT_THAT(refused("objects.npy"), HasSubstr("Python objects"));
  EXPECT_THAT(refused("structured.npy"), HasSubstr("structured"));
  EXPECT_THAT(refused("float16.npy"), HasSubstr("element type '<f2'"));
  EXPECT_THAT(refused("bool.npy"), HasSubstr("element type '|b1'"));
  EXPECT_THAT(refused("scalar.npy"), HasSubstr("without dimensions"));
  EXPECT_THAT(refused("empty.npy"), HasSubstr("the file is empty: it holds no sample (dimension 1 is 0)"));
  EXPECT_THAT(refused("archive.npz"), HasSubstr("magic number"));
}

TEST_F(PythonFiles, SafetensorsOfPython) {
  const auto file = folder_ / "data.safetensors";
  expect_counting<float, std::int64_t>(*load_safetensors(file, "features", "target"));
  expect_counting<double, std::int32_t>(*load_safetensors(file, "x64", "target32"));
  expect_counting<std::uint8_t, std::int64_t>(*load_safetensors(file, "bytes", "target"));
  EXPECT_NO_THROW(load_safetensors(file, "half", "target"));  // SafetensorsTest reads its values
  // Whatever type it has, Python's library and ours agree on where a tensor lies.
  EXPECT_EQ(SafetensorsFile(file).entries().size(), 13u);
}

TEST_F(PythonFiles, TokensOfNumpy) {
  const auto expect = [&](const std::string& name, TokenType type) {
    const auto dataset = load_tokens(folder_ / name, type, 4);
    EXPECT_EQ(dataset->size(), 24) << name;  // of 100 tokens
    EXPECT_EQ(read_field<std::int64_t>(*dataset, 1, {23}), (std::vector<std::int64_t>{93, 94, 95, 96})) << name;
  };
  expect("uint16.bin", TokenType::kUint16);
  expect("uint32.bin", TokenType::kUint32);
  expect("int32.bin", TokenType::kInt32);
  expect("int64.bin", TokenType::kInt64);
}

}  // namespace
}  // namespace dtrain::data
