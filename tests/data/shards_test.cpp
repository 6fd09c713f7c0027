// Tar shards: what others write is read, and damaged ones are errors with file and offset.
#include <algorithm>

#include <fcntl.h>
#include <sys/stat.h>

#include <gmock/gmock.h>

#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/data/dataset.h"
#include "dtrain/data/shards.h"
#include "dtrain/data/transforms.h"
#include "file_test.h"
#include "picture_files.h"
#include "source_files.h"
#include "tar_archive.h"

namespace dtrain::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::size_t kBlock = 512;

std::string text_of(const Value& value) {
  return {reinterpret_cast<const char*>(value.data.get()), value.bytes()};
}

std::int64_t label_of(const Sample& sample) {
  std::int64_t label = 0;
  std::memcpy(&label, sample.values.at(1).data.get(), sizeof label);
  return label;
}

class ShardsTest : public FileTest {
 protected:
  using Members = std::vector<std::pair<std::string, std::string>>;

  std::filesystem::path write_shard(const std::string& name, const Members& members) const {
    TarWriter writer(folder_ / name);
    for (const auto& [member, content] : members) writer.add(member, content);
    writer.close();
    return folder_ / name;
  }
  // Samples first … first + count - 1, whose pictures are texts.
  static Members samples(int first, int count) {
    Members members;
    for (int i = first; i < first + count; ++i) {
      const std::string key = "dir/" + std::to_string(100 + i);
      members.emplace_back(key + ".jpg", std::string(static_cast<std::size_t>(i) * 37 + 1, static_cast<char>('a' + i)));
      members.emplace_back(key + ".cls", std::to_string(i));
      members.emplace_back(key + ".json", "{}");
    }
    return members;
  }
  std::string refusal(const std::string& pattern) const {
    return failure([&] { load_shards((folder_ / pattern).string()); });
  }
  std::string refusal_of(const Members& members) const {
    std::filesystem::remove(folder_ / "one.tar");
    write_shard("one.tar", members);
    return refusal("one.tar");
  }
};

TEST_F(ShardsTest, AreReadInTheOrderOfTheirNames) {
  write_shard("t-001.tar", samples(3, 1));
  write_shard("t-000.tar", samples(0, 3));
  write_shard("t-002.tar", samples(4, 6));
  const auto source = load_shards((folder_ / "t-*.tar").string());
  ASSERT_EQ(source->size(), 10);
  EXPECT_THAT(source->names(), ElementsAre("image", "label"));
  for (const std::int64_t i : {9, 0, 3, 2, 5}) {
    const Sample sample = source->read({}, i);
    EXPECT_EQ(label_of(sample), i);
    EXPECT_EQ(text_of(sample.values[0]), std::string(static_cast<std::size_t>(i) * 37 + 1, static_cast<char>('a' + i)));
  }
  EXPECT_EQ(source->where(3), (folder_ / "t-001.tar").string() + ", offset 512 (dir/103.jpg)");
  // One block for each shard, since they are small, and never over the end of one.
  EXPECT_THAT(source->blocks().samples, ElementsAre(3, 1, 6));
  source->will_read(1, 9);
  EXPECT_THAT(failure([&] { source->read({}, 10); }), HasSubstr("sample 10 of a data set of 10"));
}

TEST_F(ShardsTest, AreDividedIntoBlocks) {
  Members members;
  for (int i = 0; i < 10; ++i) {
    members.emplace_back(std::to_string(i) + ".png", std::string(600 << 10, 'x'));
    members.emplace_back(std::to_string(i) + ".cls", "1");
  }
  write_shard("a.tar", members);
  write_shard("b.tar", samples(0, 2));
  const auto blocks = load_shards((folder_ / "{a,b}.tar").string())->blocks();
  EXPECT_THAT(blocks.samples, ElementsAre(4, 4, 2, 2));
  EXPECT_EQ(blocks.bytes, 2 << 20);
}

TEST_F(ShardsTest, OfTarAndPythonAreRead) {
  const std::string deep = std::string(70, 'd') + "/" + std::string(60, 'e');
  std::filesystem::create_directories(folder_ / "in" / deep);
  write("in/" + deep + "/a.jpg", "picture");
  write("in/" + deep + "/a.cls", " 7\n");
  for (const char* format : {"gnu", "pax", "ustar"}) {
    const std::filesystem::path file = folder_ / (std::string(format) + ".tar");
    ProcessOptions options;
    options.command = {"/usr/bin/tar",
                       std::string("--format=") + format,
                       "--sort=name",
                       "-cf",
                       file.string(),
                       "-C",
                       (folder_ / "in").string(),
                       "."};
    ASSERT_TRUE(Process::start(options).wait().success());
    const auto source = load_shards(file.string());
    ASSERT_EQ(source->size(), 1) << format;
    EXPECT_EQ(text_of(source->read({}, 0).values[0]), "picture");
    EXPECT_EQ(label_of(source->read({}, 0)), 7);
    EXPECT_THAT(source->where(0), HasSubstr(deep + "/a.jpg"));
  }
}

TEST_F(ShardsTest, OfTarWriterAreThoseThatTarReads) {
  const std::string name = std::string(150, 'n') + "/a.jpg";
  const auto file = write_shard("a.tar", {{name, "picture"}, {"b.txt", std::string(2 << 20, 'b')}, {"c", ""}});
  ProcessOptions options;
  options.command = {"/usr/bin/tar", "-xf", file.string(), "-C", folder_.string()};
  ASSERT_TRUE(Process::start(options).wait().success());
  EXPECT_EQ(read_file(folder_ / name), "picture");
  EXPECT_EQ(read_file(folder_ / "b.txt"), std::string(2 << 20, 'b'));
  EXPECT_EQ(read_file(folder_ / "c"), "");
  EXPECT_EQ(std::filesystem::file_size(file) % kBlock, 0u);
}

TEST_F(ShardsTest, ThatAreTruncatedNameTheOffset) {
  const auto file = write_shard("a.tar", samples(0, 2));
  const std::string whole = read_file(file);
  // Inside the picture, inside a header, and without the end mark.
  for (const std::size_t kept : {kBlock + 10, 6 * kBlock + 100, whole.size() - 2 * kBlock}) {
    write("a.tar", whole.substr(0, kept));
    EXPECT_THAT(refusal("a.tar"), AllOf(HasSubstr((folder_ / "a.tar").string() + ": offset "), HasSubstr("truncated")))
        << kept;
  }
  std::filesystem::resize_file(file, 0);
  EXPECT_THAT(refusal("a.tar"), HasSubstr("a.tar: the file is empty"));
}

TEST_F(ShardsTest, ThatAreDamagedNameTheOffset) {
  const auto file = write_shard("a.tar", samples(0, 2));
  std::string text = read_file(file);
  text[2 * kBlock] ^= 1;  // in the name of the second member
  write("a.tar", text);
  EXPECT_THAT(refusal("a.tar"), HasSubstr("a.tar: offset 1024: no header of a tar member"));
  write("a.tar", "\x1f\x8b" + std::string(1000, 'x'));
  EXPECT_THAT(refusal("a.tar"), HasSubstr("a.tar: offset 0: the archive is compressed as a whole"));
}

TEST_F(ShardsTest, MembersOfNoSampleAreLeftOut) {
  testing::internal::CaptureStderr();
  write_shard("a.tar", {{"README", "x"},
                        {"./._1.jpg", "x"},
                        {"./1.jpg", "one"},
                        {"./._1.cls", "x"},
                        {"./1.cls", "1"},
                        {".DS_Store", "x"},
                        {".cache/2.jpg", "x"},
                        {".cache/2.cls", "x"}});
  write_shard("b.tar", {{"3.jpg", "three"}, {"3.cls", "3"}, {"index.json", "{}"}, {"LICENSE.txt", "x"}});
  const auto source = load_shards((folder_ / "?.tar").string());
  ASSERT_EQ(source->size(), 2);
  EXPECT_EQ(text_of(source->read({}, 0).values[0]), "one");
  EXPECT_EQ(label_of(source->read({}, 1)), 3);
  EXPECT_EQ(source->where(0), (folder_ / "a.tar").string() + ", offset 2560 (./1.jpg)");
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      HasSubstr("a.tar and the other shards: left out: 5 hidden (./._1.jpg, …), 3 without a picture (.jpg, .jpeg "
                "or .png) and a class (.cls) (README, …)"));
}

TEST_F(ShardsTest, WithoutWholeSamplesAreRefused) {
  EXPECT_THAT(refusal_of({{"a.webp", "x"}, {"a.txt", "1"}}), HasSubstr("the shard holds no sample"));
  EXPECT_THAT(refusal_of({}), HasSubstr("one.tar: offset 0: the shard holds no sample"));
  EXPECT_THAT(refusal_of({{"a.jpg", "x"}}), HasSubstr("offset 0: the sample a has no class (.cls)"));
  EXPECT_THAT(refusal_of({{"a.jpg", "x"}, {"a.cls", "1"}, {"b.cls", "2"}}),
              HasSubstr("offset 2048: the sample b has no picture"));
  EXPECT_THAT(refusal_of({{"a.jpg", "x"}, {"a.cls", "dog"}}),
              HasSubstr("offset 1536: the class a.cls is 'dog', which is no whole number"));
  EXPECT_THAT(refusal_of({{"a.jpg", "x"}, {"a.png", "x"}, {"a.cls", "1"}}), HasSubstr("the sample a has two pictures"));
  EXPECT_THAT(refusal_of({{"a.jpg", "x"}, {"a.cls", std::string(100, '1')}}), HasSubstr("a.cls has 100 bytes"));
  EXPECT_THAT(refusal("none-*.tar"), HasSubstr("none-*.tar: "));
  EXPECT_THAT(refusal("none.tar"), HasSubstr("none.tar: cannot be opened"));
}

TEST_F(ShardsTest, ThatVanishOrShrinkWhileTheyAreReadAreErrors) {
  const auto file = write_shard("a.tar", samples(0, 3));
  const auto source = load_shards(file.string());
  std::filesystem::resize_file(file, 6 * kBlock);  // samples 1 and 2 are gone
  EXPECT_EQ(label_of(source->read({}, 0)), 0);
  EXPECT_THAT(failure([&] { source->read({}, 2); }),
              AllOf(HasSubstr("a.tar: offset "), HasSubstr("truncated: the shard")));
  const auto other = write_shard("b.tar", samples(0, 1));
  const auto unread = load_shards(other.string());
  std::filesystem::remove(other);
  EXPECT_THAT(failure([&] { unread->read({}, 0); }), HasSubstr("b.tar: cannot be opened: No such file"));
  EXPECT_EQ(unread->where(0), other.string() + ", offset 512");
}

TEST_F(ShardsTest, PicturesInThemThatAreDamagedNameShardAndMember) {
  const std::string jpeg = jpeg_of(gradient({64, 64}));
  write_shard("a.tar", {{"x.jpg", jpeg}, {"x.cls", "1"}, {"y.jpg", jpeg.substr(0, jpeg.size() / 2)}, {"y.cls", "1"}});
  const auto dataset = transformed(load_shards((folder_ / "a.tar").string()), {CenterCrop{.size = 60}});
  EXPECT_EQ(read_field<std::uint8_t>(*dataset, 0, {0}).size(), 3u * 60 * 60);
  const std::string error = failure([&] { read_field<std::uint8_t>(*dataset, 0, {1}); });
  EXPECT_THAT(error, AllOf(HasSubstr("a.tar, offset "), HasSubstr("(y.jpg): truncated: the JPEG ends here"),
                           HasSubstr("on_error: skip")));
}

TEST_F(ShardsTest, MoreThanStayOpenAreRead) {
  constexpr int kShards = 300;
  for (int i = 0; i < kShards; ++i) write_shard(std::to_string(1000 + i) + ".tar", samples(i % 20, 1));
  const auto source = load_shards((folder_ / "{1000..1299}.tar").string());
  ASSERT_EQ(source->size(), kShards);
  for (const int i : {0, 299, 150, 0, 299}) EXPECT_EQ(label_of(source->read({}, i)), i % 20);
  for (int i = 0; i < kShards; ++i) source->read({}, i);
}

TEST_F(ShardsTest, FilesAreNamedByPatterns) {
  for (const char* name : {"a-08.tar", "a-09.tar", "a-10.tar", "b.tar"}) write(name, "x");
  const auto named = [&](const std::string& pattern) {
    std::vector<std::string> names;
    for (const auto& file : files_named((folder_ / pattern).string())) names.push_back(file.filename());
    return names;
  };
  EXPECT_THAT(named("a-*.tar"), ElementsAre("a-08.tar", "a-09.tar", "a-10.tar"));
  EXPECT_THAT(named("a-{08..10}.tar"), ElementsAre("a-08.tar", "a-09.tar", "a-10.tar"));
  EXPECT_THAT(named("{b,a-09,b}.tar"), ElementsAre("a-09.tar", "b.tar"));
  EXPECT_THAT(named("a-0?.tar"), ElementsAre("a-08.tar", "a-09.tar"));
  EXPECT_THAT(failure([&] { named("{3..1}b.tar"); }), HasSubstr("names no file"));
}

// Seeded damage to archives and pictures: whatever comes, an error that names the file, or samples.
TEST_F(ShardsTest, DamagedByChanceAreReadOrRefused) {
  Image picture = gradient({40, 30});
  const std::string jpeg = jpeg_of(picture), png = png_of(picture);
  write_shard("good.tar", {{"a/1.jpg", jpeg},
                           {"a/1.cls", "1"},
                           {std::string(130, 'l') + ".png", png},
                           {std::string(130, 'l') + ".cls", "2"}});
  const std::string good = read_file(folder_ / "good.tar");
  RandomStream random{31};
  int refused = 0, damaged = 0, read = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::string text = damaged_by_chance(good, random, 4, 600);
    write("bad.tar", text);
    try {
      const auto dataset = transformed(load_shards((folder_ / "bad.tar").string()), {CenterCrop{.size = 24}});
      for (std::int64_t sample = 0; sample < dataset->size(); ++sample) {
        try {
          read_field<std::uint8_t>(*dataset, 0, {sample});
          ++read;
        } catch (const DataError& error) {
          EXPECT_THAT(error.what(), HasSubstr("bad.tar"));
          ++damaged;
        }
      }
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr("bad.tar"));
      ++refused;
    }
  }
  EXPECT_GT(refused, 300);
  EXPECT_GT(damaged, 5);
  EXPECT_GT(read, 100);
}

}  // namespace
}  // namespace dtrain::data
