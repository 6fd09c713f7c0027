// The data set in shared memory, seen by the process that made it and by one that only maps it.
#include "dtrain/data/in_memory.h"

#include <cstring>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/base/error.h"

namespace dtrain::data {
namespace {

using ::testing::HasSubstr;

const std::vector<Field> kFields{{"a", ElementType::kUint8, {3}},
                                 {"b", ElementType::kFloat64, {2, 2}},
                                 {"c", ElementType::kInt32, {}},
                                 {"d", ElementType::kInt64, {1}},
                                 {"e", ElementType::kFloat32, {5}}};

InMemoryDataset numbered() {
  auto dataset = InMemoryDataset::allocate("dtrain-test", 7, kFields);
  for (std::size_t f = 0; f < kFields.size(); ++f) {
    const auto bytes = kFields[f].bytes();
    for (std::size_t i = 0; i < 7; ++i) {
      std::memset(dataset.column(f).data() + i * bytes, static_cast<int>(16 * f + i), bytes);
    }
  }
  return dataset;
}

void expect_numbered(const Dataset& dataset) {
  ASSERT_EQ(dataset.size(), 7);
  ASSERT_EQ(dataset.fields().size(), kFields.size());
  const std::vector<std::int64_t> wanted{6, 0, 3, 3};
  std::vector<std::vector<std::byte>> buffers;
  std::vector<std::byte*> outputs;
  for (const auto& field : dataset.fields()) buffers.emplace_back(field.bytes() * wanted.size());
  for (auto& buffer : buffers) outputs.push_back(buffer.data());
  dataset.read(wanted, outputs);
  for (std::size_t f = 0; f < kFields.size(); ++f) {
    EXPECT_EQ(dataset.fields()[f].name, kFields[f].name);
    EXPECT_EQ(dataset.fields()[f].type, kFields[f].type);
    EXPECT_EQ(dataset.fields()[f].shape, kFields[f].shape);
    for (std::size_t k = 0; k < buffers[f].size(); ++k) {
      const auto sample = static_cast<std::size_t>(wanted[k / kFields[f].bytes()]);
      ASSERT_EQ(buffers[f][k], static_cast<std::byte>(16 * f + sample)) << "field " << f << " byte " << k;
    }
  }
}

TEST(Field, Bytes) {
  EXPECT_EQ(kFields[0].bytes(), 3u);
  EXPECT_EQ(kFields[1].bytes(), 32u);
  EXPECT_EQ(kFields[2].bytes(), 4u);
  EXPECT_EQ(kFields[3].bytes(), 8u);
  EXPECT_EQ(kFields[4].bytes(), 20u);
}

TEST(InMemory, ReadsWhatWasWritten) {
  expect_numbered(numbered());
}

TEST(InMemory, MappedReadOnlyItDescribesItself) {
  const auto memory = numbered().release();
  expect_numbered(InMemoryDataset(SharedMemory::map(duplicate(memory.fd()), false)));
}

TEST(InMemory, ColumnsAreAligned) {
  const auto dataset = numbered();
  for (std::size_t f = 0; f < kFields.size(); ++f) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(dataset.column(f).data()) % 64, 0u);
    EXPECT_EQ(dataset.column(f).size(), kFields[f].bytes() * 7);
  }
}

TEST(InMemory, SamplesOutsideAreErrors) {
  const auto dataset = numbered();
  std::vector<std::byte> buffer(64);
  const std::vector<std::byte*> outputs(kFields.size(), buffer.data());
  for (const std::int64_t sample : {-1, 7}) {
    EXPECT_THROW(dataset.read({&sample, 1}, outputs), DataError);
  }
}

TEST(InMemory, ImpossibleSizes) {
  const std::int64_t large = std::int64_t{1} << 40;
  EXPECT_THROW(InMemoryDataset::allocate("dtrain-test", 0, kFields), DataError);
  EXPECT_THROW(InMemoryDataset::allocate("dtrain-test", -1, kFields), DataError);
  EXPECT_THROW(InMemoryDataset::allocate("dtrain-test", INT64_MAX, kFields), DataError);
  EXPECT_THROW(InMemoryDataset::allocate("dtrain-test", large, {{"x", ElementType::kFloat64, {large}}}), DataError);
  EXPECT_THROW(InMemoryDataset::allocate("dtrain-test", 1, {{"x", ElementType::kFloat64, {0}}}), DataError);
}

TEST(InMemory, ForeignMemoryIsRefused) {
  try {
    InMemoryDataset(SharedMemory::create("dtrain-test", 4096));
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("does not hold a data set"));
    EXPECT_FALSE(error.remedy().empty());
  }
}

}  // namespace
}  // namespace dtrain::data
