// Packing, and the tools that look at a data set.
#include <algorithm>

#include <gmock/gmock.h>

#include "dtrain/base/file.h"
#include "dtrain/data/data_sets.h"
#include "dtrain/data/shards.h"
#include "dtrain/data/tools.h"
#include "file_test.h"
#include "picture_files.h"

namespace dtrain::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::int64_t packed_label(const Sample& sample) {
  std::int64_t label = 0;
  std::memcpy(&label, sample.values.at(1).data.get(), sizeof label);
  return label;
}

class PackTest : public FileTest {
 protected:
  // pictures/cat with 6, pictures/dog with 3.
  void SetUp() override {
    for (int i = 0; i < 9; ++i) {
      const std::string name = std::string(i < 6 ? "cat/" : "dog/") + "p.art" + std::to_string(i) + ".png";
      put("pictures/" + name, png_of(gradient({30 + i, 40})));
    }
  }
  void put(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    write(name, content);
  }
  std::filesystem::path pictures() const { return folder_ / "pictures"; }
  std::shared_ptr<SampleSource> packed(const PackOptions& options) const {
    const PackedShards shards = pack_pictures(list_image_folder(pictures()), folder_ / "out", options);
    EXPECT_EQ(shards.samples, 9);
    std::uint64_t bytes = 0;
    for (const auto& shard : shards.shards) bytes += std::filesystem::file_size(shard);
    EXPECT_EQ(shards.bytes, bytes);
    return load_shards((folder_ / "out" / (options.name + "-*.tar")).string());
  }
};

TEST_F(PackTest, ShardsHaveThePicturesOfTheFolder) {
  const auto source = packed({.name = "train", .shard_bytes = 10'000});
  ASSERT_EQ(source->size(), 9);
  EXPECT_GT(source->blocks().samples.size(), 1u);
  std::vector<std::string> expected, found;
  const auto from = load_image_folder(pictures());
  for (std::int64_t i = 0; i < 9; ++i) {
    for (const auto& [side, list] : {std::pair{from, &expected}, std::pair{source, &found}}) {
      const Sample sample = side->read({}, i);
      const Value& file = sample.values[0];
      list->push_back(std::to_string(packed_label(sample)) +
                      std::string(reinterpret_cast<const char*>(file.data.get()), file.bytes()));
    }
  }
  EXPECT_NE(found, expected);  // they are in a random order
  std::sort(found.begin(), found.end());
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(found, expected);
  EXPECT_EQ(read_file(folder_ / "out/classes.txt"), "cat\ndog\n");
  EXPECT_THAT(source->where(0), HasSubstr("-p_art"));  // a key has no dots
}

TEST_F(PackTest, TheOrderIsThatOfTheSeed) {
  const auto labels = [&](const PackOptions& options) {
    std::filesystem::remove_all(folder_ / "out");
    const auto source = packed(options);
    std::vector<std::string> places;
    for (std::int64_t i = 0; i < 9; ++i) places.push_back(source->where(i));
    return places;
  };
  EXPECT_EQ(labels({.seed = 1}), labels({.seed = 1}));
  EXPECT_NE(labels({.seed = 1}), labels({.seed = 2}));
  const auto kept = packed({.name = "kept", .shuffle = false});
  for (std::int64_t i = 0; i < 9; ++i) EXPECT_EQ(packed_label(kept->read({}, i)), i < 6 ? 0 : 1);
}

TEST_F(PackTest, AListNamesPicturesAndClasses) {
  put("lists/a.csv",
      "split,path,class\n1,../pictures/dog/p.art6.png,dog\r\n1,\"../pictures/cat/p.art0.png\",\"a, \"\"cat\"\"\"\n\n");
  const ImageFolderFiles listed = read_picture_list(folder_ / "lists/a.csv", "path", "class");
  EXPECT_THAT(listed.classes, ElementsAre("a, \"cat\"", "dog"));
  ASSERT_EQ(listed.files.size(), 2u);
  EXPECT_EQ(listed.files[0].label, 1);
  EXPECT_EQ(pack_pictures(listed, folder_ / "of_list", {}).samples, 2);
  put("n.csv", "file,label\na.jpg,7\nb.jpg,2\n");
  const ImageFolderFiles numbers = read_picture_list(folder_ / "n.csv", "file", "label");
  EXPECT_TRUE(numbers.classes.empty());
  EXPECT_EQ(numbers.files[0].label, 7);
  EXPECT_THAT(failure([&] { read_picture_list(folder_ / "n.csv", "path", "label"); }),
              HasSubstr("n.csv: offset 0: line 1: there is no column 'path'; its columns are file, label"));
  put("n.csv", "file,label\na.jpg\n");
  EXPECT_THAT(failure([&] { read_picture_list(folder_ / "n.csv", "file", "label"); }),
              HasSubstr("n.csv: offset 11: line 2: has 1 values, and 2 columns are named"));
}

TEST_F(PackTest, DamagedPicturesAndOldShardsAreErrors) {
  const std::string whole = read_file(pictures() / "dog/p.art7.png");
  put("pictures/dog/p.art7.png", whole.substr(0, whole.size() / 2));
  EXPECT_THAT(failure([&] { packed({}); }), AllOf(HasSubstr("p.art7.png: offset "), HasSubstr("truncated")));
  // What was begun is no shard.
  EXPECT_THAT(failure([&] { load_shards((folder_ / "out/shard-*.tar").string()); }), HasSubstr("out/shard-*.tar: "));
  put("pictures/dog/p.art7.png", whole);
  packed({});
  EXPECT_THAT(failure([&] { packed({}); }), HasSubstr("shard-000000.tar: is there already"));
  write("out/shard-000009.tar", "of an older packing");
  write("out/shard-more.tar", "something else");
  EXPECT_EQ(pack_pictures(list_image_folder(pictures()), folder_ / "out", {.replace = true}).samples, 9);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/shard-000009.tar"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "out/shard-more.tar"));
}

// Shards take the place of older ones together, once all pictures are in them.
TEST_F(PackTest, WhatFailsLeavesTheOldShards) {
  PackOptions each_alone;  // a shard for every picture
  each_alone.shard_bytes = 1;
  each_alone.shuffle = false;
  packed(each_alone);
  const std::string before = read_file(folder_ / "out/shard-000000.tar");
  each_alone.replace = true;
  put("pictures/dog/p.art7.png", "no picture");
  put("pictures/cat/p.art0.png", read_file(pictures() / "dog/p.art6.png"));
  EXPECT_THAT(failure([&] { packed(each_alone); }), HasSubstr("p.art7.png: offset 0"));
  EXPECT_EQ(read_file(folder_ / "out/shard-000000.tar"), before);
  EXPECT_EQ(load_shards((folder_ / "out/shard-*.tar").string())->size(), 9);
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "out")) {
    EXPECT_NE(entry.path().extension(), ".part");
  }
  EXPECT_THAT(failure([&] { pack_pictures({}, folder_ / "out", each_alone); }), HasSubstr("no pictures to pack"));
  EXPECT_EQ(load_shards((folder_ / "out/shard-*.tar").string())->size(), 9);
}

TEST_F(PackTest, MembersHaveTheEndingOfTheirContent) {
  put("odd/photo.jfif", read_file(pictures() / "dog/p.art6.png"));
  put("odd/list.csv", "\xef\xbb\xbfpath,class\nphoto.jfif,3\n");  // as spreadsheets begin it
  pack_pictures(read_picture_list(folder_ / "odd/list.csv", "path", "class"), folder_ / "odd_out", {});
  const auto source = load_shards((folder_ / "odd_out/shard-*.tar").string());
  ASSERT_EQ(source->size(), 1);
  EXPECT_EQ(packed_label(source->read({}, 0)), 3);
}

// Validation is packed beside training, and a class has one number in both.
TEST_F(PackTest, OtherClassesBesideShardsAreAnError) {
  packed({});
  ImageFolderFiles listed = list_image_folder(pictures());
  PackOptions validation;
  validation.name = "val";
  EXPECT_EQ(pack_pictures(listed, folder_ / "out", validation).samples, 9);  // the same classes
  listed.classes = {"cat", "hen"};
  validation.name = "more";
  EXPECT_THAT(failure([&] { pack_pictures(listed, folder_ / "out", validation); }),
              AllOf(HasSubstr("out/classes.txt: the shards there have other classes, with 'dog'"),
                    HasSubstr("which is missing here")));
  EXPECT_EQ(load_shards((folder_ / "out/val-*.tar").string())->size(), 9);
}

TEST_F(PackTest, TextsBecomeTokens) {
  put("a.txt", "ab");
  put("b.txt", "\xc3\xa9");
  EXPECT_EQ(pack_texts({folder_ / "a.txt", folder_ / "b.txt"}, folder_ / "tokens.bin").tokens, 6);
  const auto tokens = load_tokens(folder_ / "tokens.bin", TokenType::kUint16, 5);
  EXPECT_THAT(read_field<std::int64_t>(*tokens, 0, {0}), ElementsAre('a', 'b', kEndOfText, 0xc3, 0xa9));
  EXPECT_THAT(failure([&] { pack_texts({folder_ / "a.txt"}, folder_ / "tokens.bin"); }), HasSubstr("is there already"));
  put("b.txt", "\xc3");
  EXPECT_THAT(failure([&] { pack_texts({folder_ / "b.txt"}, folder_ / "c.bin"); }),
              HasSubstr("b.txt: is no text in UTF-8"));
}

TEST_F(PackTest, APageShowsEverySampleInEveryEpoch) {
  const auto source = load_image_folder(pictures());
  const SamplePageOptions options{.title = "a <b>", .samples = 3, .epochs = 2, .classes = {"cat", "dog"}};
  const std::vector<Transform> transforms{RandomResizedCrop{.size = 20}, Normalize{}};
  const std::string page = sample_page(source, transforms, {}, options);
  const auto count = [&](const std::string& text) {
    std::size_t found = 0;
    for (auto at = page.find(text); at != std::string::npos; at = page.find(text, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("data:image/png;base64,"), 9u);
  EXPECT_EQ(count("epoch 1: class 0 (cat)"), 6u);  // alternative text and caption
  EXPECT_THAT(page, AllOf(HasSubstr("a &lt;b&gt;"), Not(HasSubstr("a <b>")), HasSubstr("p.art0.png"),
                          HasSubstr("float32 [3, 20, 20]"), Not(HasSubstr("http"))));
  const std::string mixed =
      sample_page(source, {CenterCrop{.size = 8}, MixUp{.classes = 2}}, {}, {.samples = 9, .epochs = 1});
  EXPECT_THAT(mixed, AllOf(HasSubstr("100% class 0"), HasSubstr("% class 1")));
}

TEST_F(PackTest, ThroughputIsMeasuredForEachNumberOfWorkers) {
  const auto report = measure_throughput(load_image_folder(pictures()), {CenterCrop{.size = 16}}, {}, {1, 3},
                                         std::chrono::milliseconds(50));
  ASSERT_EQ(report.rates.size(), 2u);
  EXPECT_EQ(report.rates[1].workers, 3);
  for (const WorkerRate& rate : report.rates) EXPECT_GT(rate.samples_per_second, 0);
  EXPECT_GT(report.bytes, 0);
  EXPECT_EQ(report.output_bytes, 3 * 16 * 16 + 8);
  EXPECT_FALSE(report.advice.empty());
  put("pictures/dog/bad.png", "no picture");
  EXPECT_THAT(failure([&] {
                measure_throughput(load_image_folder(pictures()), {CenterCrop{.size = 16}}, {}, {2},
                                   std::chrono::milliseconds(50));
              }),
              HasSubstr("neither JPEG nor PNG"));
}

}  // namespace
}  // namespace dtrain::data
