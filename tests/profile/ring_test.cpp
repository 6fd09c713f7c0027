#include "ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "dtrain/base/error.h"

namespace dtrain::profile {
namespace {

bool push(RingWriter& ring, std::int64_t batch) {
  Record* record = ring.reserve();
  if (record == nullptr) return false;
  record->kind = RecordKind::kLoader;
  record->batch = batch;
  record->loader = {batch, 1, 2};
  ring.commit();
  return true;
}

constexpr std::size_t kFour = sizeof(RingHeader) + 4 * sizeof(Record);

TEST(Ring, DropsAndCountsWhenFullAndGoesOnOnceThereIsRoom) {
  RingWriter writer(kFour);
  RingReader reader(duplicate(writer.fd()));
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_TRUE(push(writer, i));
  EXPECT_FALSE(push(writer, 4));
  EXPECT_FALSE(push(writer, 5));
  EXPECT_EQ(reader.dropped(), 2u);
  EXPECT_EQ(reader.peek()->batch, 0);
  reader.pop();
  EXPECT_FALSE(push(writer, 5)) << "its room is needed until it is released";
  reader.release();
  EXPECT_TRUE(push(writer, 6));
  std::vector<std::int64_t> seen;
  while (const Record* record = reader.peek()) {
    seen.push_back(record->batch);
    reader.pop();
  }
  EXPECT_EQ(seen, (std::vector<std::int64_t>{1, 2, 3, 6}));
}

TEST(Ring, ALaterReaderGoesOnBehindWhatWasReleased) {
  RingWriter writer(kFour);
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_TRUE(push(writer, i));
  EXPECT_FALSE(push(writer, 4));
  {
    RingReader first(duplicate(writer.fd()));
    for (std::int64_t i = 0; i < 2; ++i) {
      EXPECT_EQ(first.peek()->batch, i);
      first.pop();
      if (i == 0) first.release();
    }
    EXPECT_EQ(first.dropped_noted(), 0u);
    first.note_dropped(first.dropped());
  }
  RingReader next(duplicate(writer.fd()));
  EXPECT_EQ(next.dropped_noted(), 1u);
  EXPECT_TRUE(push(writer, 5));
  for (const std::int64_t expected : {1, 2, 3, 5}) {
    ASSERT_NE(next.peek(), nullptr);
    EXPECT_EQ(next.peek()->batch, expected);
    next.pop();
  }
  EXPECT_EQ(next.peek(), nullptr);
}

TEST(Ring, HoldsOneRecordAtLeast) {
  RingWriter writer(1);
  EXPECT_TRUE(push(writer, 1));
  EXPECT_FALSE(push(writer, 2));
}

TEST(Ring, WhatIsNotCommittedIsNotSeen) {
  RingWriter writer(kFour);
  RingReader reader(duplicate(writer.fd()));
  writer.reserve()->batch = 7;
  EXPECT_EQ(reader.peek(), nullptr);
}

TEST(Ring, CarriesEverythingInOrderBetweenTwoThreads) {
  RingWriter writer(sizeof(RingHeader) + 64 * sizeof(Record));
  RingReader reader(duplicate(writer.fd()));
  constexpr std::int64_t kCount = 100'000;
  std::thread producer([&] {
    for (std::int64_t i = 0; i < kCount;) {
      if (push(writer, i)) {
        ++i;
      } else {
        std::this_thread::yield();
      }
    }
  });
  for (std::int64_t expected = 0; expected < kCount;) {
    const Record* record = reader.peek();
    if (record == nullptr) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_EQ(record->batch, expected);
    ASSERT_EQ(record->loader.time_ns, expected);
    reader.pop();
    reader.release();
    ++expected;
  }
  producer.join();
  EXPECT_EQ(reader.peek(), nullptr);
}

TEST(Ring, RefusesMemoryThatIsNone) {
  EXPECT_THROW(RingReader(duplicate(SharedMemory::create("test", 4096).fd())), CommError);
  const auto damaged = [](auto damage) {
    RingWriter writer(kFour);
    const SharedMemory memory = SharedMemory::map(duplicate(writer.fd()));
    damage(*reinterpret_cast<RingHeader*>(memory.data()));
    RingReader reader(duplicate(writer.fd()));
    reader.peek();
  };
  EXPECT_NO_THROW(damaged([](RingHeader&) {}));
  EXPECT_THROW(damaged([](RingHeader& h) { h.version = 99; }), CommError);
  EXPECT_THROW(damaged([](RingHeader& h) { h.capacity = 1u << 20; }), CommError);
  EXPECT_THROW(damaged([](RingHeader& h) { h.capacity = 3; }), CommError);
  EXPECT_THROW(damaged([](RingHeader& h) { h.head = 1'000; }), CommError);
}

}  // namespace
}  // namespace dtrain::profile
