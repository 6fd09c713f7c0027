#include "monitor/dump.h"

#include <gmock/gmock.h>

#include "support.h"

namespace dtrain::profile {
namespace {

TEST(DumpWriter, CountsWhatItCannotWriteAndSaysSoOnceItCan) {
  TemporaryFolder folder;
  ManualClock clock;
  const fs::path path = folder.path() / "later" / "dump.jsonl";
  DumpWriter writer(path, clock);
  writer.write("{\"a\":1}\n{\"a\":2}\n");
  EXPECT_EQ(writer.lost(), 2u);
  ASSERT_TRUE(writer.error());
  EXPECT_THAT(*writer.error(), testing::HasSubstr(path.string()));

  fs::create_directory(folder.path() / "later");
  writer.write("{\"a\":3}\n");
  EXPECT_EQ(writer.lost(), 3u) << "it does not try again at every turn";
  clock.now += 1s;
  writer.write("{\"a\":4}\n");
  EXPECT_EQ(writer.lost(), 3u);
  const auto records = read_dump(path);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0]["record"], "lost");
  EXPECT_EQ(records[0]["count"], 3);
  EXPECT_EQ(records[1]["a"], 4);
  EXPECT_TRUE(writer.error()) << "the first error is kept";
}

TEST(DumpWriter, TheNoteAboutLossIsNoLoss) {
  TemporaryFolder folder;
  ManualClock clock;
  DumpWriter writer(folder.path() / "later" / "dump.jsonl", clock);
  for (int i = 0; i < 5; ++i) {
    writer.write("{}\n");
    clock.now += 1s;
  }
  EXPECT_EQ(writer.lost(), 5u);
}

}  // namespace
}  // namespace dtrain::profile
