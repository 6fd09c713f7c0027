// Tables as text, arrays without a header, and several files as one data set.
#include <fstream>

#include <gmock/gmock.h>
#include <zlib.h>

#include "dtrain/data/data_sets.h"
#include "dtrain/data/formats.h"
#include "dtrain/data/loader.h"
#include "file_test.h"
#include "source_files.h"

namespace dtrain::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CsvTest : public FileTest {
 protected:
  std::shared_ptr<Dataset> load(const std::string& text, const CsvOptions& options = {}) const {
    return load_csv(write("t.csv", text), options);
  }
  std::string refused(const std::string& text, const CsvOptions& options = {}) const {
    return failure([&] { load(text, options); });
  }
};

TEST_F(CsvTest, TheLastColumnIsTheTarget) {
  const auto data = load("a,b,label\n1,2.5,3\n-4e1, +5 ,6\n");
  ASSERT_EQ(data->size(), 2);
  EXPECT_EQ(data->fields()[0].shape, std::vector<std::int64_t>{2});
  EXPECT_EQ(read_field<float>(*data, 0, {0, 1}), (std::vector<float>{1, 2.5, -40, 5}));
  EXPECT_EQ(read_field<std::int64_t>(*data, 1, {1, 0}), (std::vector<std::int64_t>{6, 3}));
}

TEST_F(CsvTest, AnyColumnMayBeTheTarget) {
  for (const CsvOptions& options : {CsvOptions{.target = "b"}, CsvOptions{.target = "2"}}) {
    const auto data = load("a,b,c\n1,2,3\n4,5,6", options);  // no line break at the end
    EXPECT_EQ(read_field<float>(*data, 0, {1}), (std::vector<float>{4, 6}));
    EXPECT_EQ(read_field<std::int64_t>(*data, 1, {0, 1}), (std::vector<std::int64_t>{2, 5}));
  }
  const auto data = load("7;0.25\n8;0.5\n", {.header = false, .delimiter = ';', .whole_target = false});
  EXPECT_EQ(read_field<float>(*data, 1, {0, 1}), (std::vector<float>{0.25, 0.5}));
}

TEST_F(CsvTest, AsProgramsWriteIt) {
  const auto data = load("\xef\xbb\xbf\"a\",\"the \"\"b\"\", or c\",label\r\n\r\n\"1\",2,\"3\"\r\n4,5,6\r\n");
  EXPECT_EQ(read_field<float>(*data, 0, {0, 1}), (std::vector<float>{1, 2, 4, 5}));
  std::string long_table = "a,b\n";
  for (int i = 0; i < 400'000; ++i) long_table += std::to_string(i) + "," + std::to_string(i % 7) + "\n";
  const auto large = load(long_table);
  EXPECT_EQ(large->size(), 400'000);
  EXPECT_EQ(read_field<float>(*large, 0, {399'999, 262'144}), (std::vector<float>{399'999, 262'144}));
  const auto packed = folder_ / "t.csv.gz";
  gzFile file = gzopen(packed.c_str(), "wb");
  gzwrite(file, "a,b\n1,2\n", 8);
  gzclose(file);
  EXPECT_EQ(load_csv(packed, {})->size(), 1);
}

TEST_F(CsvTest, AFileThatUnpacksToFarMoreThanItsSizeIsRefused) {
  const auto packed = folder_ / "bomb.csv.gz";
  std::string rows;
  for (int i = 0; i < 1 << 18; ++i) rows += "1,2\n";
  gzFile file = gzopen(packed.c_str(), "wb9");
  gzputs(file, "a,b\n");
  for (int i = 0; i < 80; ++i) gzwrite(file, rows.data(), static_cast<unsigned>(rows.size()));
  gzclose(file);
  try {
    load_csv(packed, {});
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("bomb.csv.gz"), HasSubstr("unpacks to more than 500 times its size")));
    EXPECT_THAT(error.remedy(), HasSubstr("gunzip"));
  }
}

TEST_F(CsvTest, ErrorsNameLineAndColumn) {
  EXPECT_THAT(refused("a,b\n1,2\n3,x\n"),
              AllOf(HasSubstr("t.csv: offset 8: line 3: column 2 (b) is 'x', which is no whole number"),
                    HasSubstr("data.target_column")));
  EXPECT_THAT(refused("a,b\n1,2\n,4\n"), HasSubstr("line 3: column 1 (a) is '', which is no number"));
  EXPECT_THAT(refused("1,2.5\n", {.header = false}), HasSubstr("line 1: column 2 is '2.5', which is no whole number"));
  EXPECT_THAT(refused("a,b\n1,2,3\n"), HasSubstr("line 2: 3 columns, but the first line has 2"));
  EXPECT_THAT(refused("a\n1\n"), AllOf(HasSubstr("one column"), HasSubstr("is ',' between the columns?")));
  EXPECT_THAT(refused("a,b\n"), HasSubstr("without a sample"));
  EXPECT_THAT(refused("\n\n"), HasSubstr("the file has no line"));
  EXPECT_THAT(refused("a,b\n1,\"2\n"), HasSubstr("offset 4: line 2: a quotation mark has no second one"));
  EXPECT_THAT(refused("\"a\n\",b\n1,x\n"), HasSubstr("offset 7: line 3: column 2 (b) is 'x'"))
      << "a line break in quotes";
  EXPECT_THAT(refused("a,b\n1,2\n", {.target = "c"}), AllOf(HasSubstr("no column 'c'"), HasSubstr("are: a, b")));
  EXPECT_THAT(refused("1,2\n", {.header = false, .target = "3"}), HasSubstr("from 1 to 2"));
  EXPECT_THAT(refused(""), HasSubstr("the file is empty"));
}

TEST_F(CsvTest, NumbersBeyondTheRangeOfFloat) {
  const CsvOptions numbers{.whole_target = false};
  const auto data = load("a,b\n1e-60,-1e-400\n1e-40,3.4e38\n+1e-99999,0.0000000001e-50\n", numbers);
  EXPECT_THAT(read_field<float>(*data, 0, {0, 1, 2}), ElementsAre(0, 1e-40F, 0));
  EXPECT_THAT(read_field<float>(*data, 1, {0, 1, 2}), ElementsAre(0, 3.4e38F, 0));
  for (const std::string number : {"1e39", "-1e39", "1e400", "10000000000000000000000000000000000000000"}) {
    EXPECT_THAT(refused("a,b\n1,2\n" + number + ",2\n"),
                HasSubstr("line 3: column 1 (a) is '" + number.substr(0, 40) +
                          "', which is more than a float32 can be (at most 3.4e38)"));
  }
  EXPECT_THAT(refused("a,b\n1,9223372036854775808\n"),
              HasSubstr("column 2 (b) is '9223372036854775808', which is a number of more than 64 bits"));
}

TEST_F(CsvTest, AFirstLineOfNumbersIsNoHeader) {
  EXPECT_THAT(refused("5.1,3.5,0\n4.9,3.0,0\n"),
              AllOf(HasSubstr("t.csv: offset 0: line 1: the header is to name the columns, and this line has numbers "
                              "alone ('5.1', '3.5', …)"),
                    HasSubstr("set data.header to false")));
  EXPECT_THAT(refused("1,,3,4\n1,2,3,4\n", {.target = "label"}), HasSubstr("numbers alone"));
  EXPECT_THAT(refused("\"1\",1e39\n2,3\n"), HasSubstr("numbers alone"));
  EXPECT_THAT(refused("0,1\n0,1\n"), HasSubstr("numbers alone")) << "a sample of two columns may be this";
  EXPECT_THAT(refused("0,1,2,4\n0,1,2,3\n"), HasSubstr("numbers alone"));
  EXPECT_EQ(load("5.1,3.5,0\n4.9,3.0,0\n", {.header = false})->size(), 2);
  EXPECT_EQ(load("400,401,label\n1,2,3\n")->size(), 1);
  for (const char* header : {"0,1,2,3", "1,2,3,4"}) {  // those of pandas
    const auto data = load(std::string(header) + "\n5,6,7,8\n", {.target = "1"});
    EXPECT_EQ(data->size(), 1);
    EXPECT_THAT(read_field<std::int64_t>(*data, 1, {0}), ElementsAre(header[0] == '0' ? 6 : 5)) << "a name goes first";
  }
}

std::int64_t resident_bytes() {
  std::int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * 4096;
}

class RawTest : public FileTest {
 protected:
  std::shared_ptr<Dataset> open(const std::string& x, const std::string& y) const {
    return open_raw({write("x", x), ElementType::kUint8, {2, 2}}, {write("y", y), ElementType::kInt32, {}});
  }
};

TEST_F(RawTest, SamplesComeAsTheyAre) {
  const auto data = open("abcdefghijkl", bytes_of<std::int32_t>({7, -8, 9}));
  ASSERT_EQ(data->size(), 3);
  EXPECT_EQ(data->fields()[0].shape, (std::vector<std::int64_t>{2, 2}));
  EXPECT_THAT(read_field<char>(*data, 0, {2, 0}), ElementsAre('i', 'j', 'k', 'l', 'a', 'b', 'c', 'd'));
  EXPECT_THAT(read_field<std::int32_t>(*data, 1, {0, 1, 2, 1}), ElementsAre(7, -8, 9, -8));
  EXPECT_EQ(data->where(2), (folder_ / "x").string() + ", offset 8");
  EXPECT_THROW(read_field<char>(*data, 0, {3}), DataError);
}

TEST_F(RawTest, FilesThatDoNotFit) {
  const auto refused = [&](const std::string& x, const std::string& y) { return failure([&] { open(x, y); }); };
  EXPECT_THAT(refused("abcdefghij", "1234"),
              AllOf(HasSubstr("x: offset 8: the file ends inside a sample"), HasSubstr("do type and shape fit")));
  EXPECT_THAT(refused("abcdefgh", "1234"), HasSubstr("y: 1 samples, but"));
  EXPECT_THAT(refused("", "1234"), HasSubstr("the file is empty"));
  const auto x = write("x", "abcd");
  EXPECT_THAT(failure([&] {
                open_raw({x, ElementType::kUint8, {0}}, {x, ElementType::kUint8, {4}});
              }),
              HasSubstr("a dimension of 0"));
  EXPECT_THAT(failure([&] {
                open_raw({x, ElementType::kUint8, {1 << 16, 1 << 16, 1 << 16, 1 << 16}}, {x, ElementType::kUint8, {4}});
              }),
              HasSubstr("more bytes than 64 bits count"));
}

// A hole in a file takes no disk; a data set of a billion samples no memory.
TEST_F(RawTest, ABillionSamples) {
  constexpr std::int64_t kSamples = 1'000'000'000;
  const auto x = write("x", "a"), y = write("y", "a");
  std::filesystem::resize_file(x, kSamples * 16);
  std::filesystem::resize_file(y, kSamples * 8);
  const std::int64_t before = resident_bytes();
  const auto data = open_raw({x, ElementType::kUint8, {16}}, {y, ElementType::kInt64, {}});
  EXPECT_EQ(data->size(), kSamples);
  SampleLoader loader(data, {.batch_size = 64, .rank = 2, .world_size = 4, .seed = 1, .workers = 1});
  loader.start_epoch(0);
  EXPECT_TRUE(loader.next());
  LoaderState middle = loader.state();
  middle.position = kSamples / 2;
  loader.restore(middle);
  EXPECT_TRUE(loader.next());
  EXPECT_LT(resident_bytes() - before, 50'000'000);
  EXPECT_LE(data->blocks().samples.size(), 65'537u);
  EXPECT_THAT(read_field<std::int64_t>(*data, 1, {kSamples - 1}), ElementsAre(0));
}

class FilesTest : public FileTest {
 protected:
  std::shared_ptr<Dataset> open(const Source& source) const {
    return Raw{.features_type = ElementType::kUint8, .features_shape = {1}}.open(source, no_sharing());
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
};

TEST_F(FilesTest, SeveralFilesAreOneDataSet) {
  std::filesystem::create_directories(folder_);
  for (const auto& [name, count] : {std::pair{"b", 2}, {"a", 3}, {"c", 1}}) {
    write(std::string("x-") + name, std::string(static_cast<std::size_t>(count), name[0]));
    write(std::string("y-") + name, bytes_of(std::vector<std::int64_t>(static_cast<std::size_t>(count), count)));
  }
  const auto data = open({{"features", path("x-*")}, {"target", path("y-?")}});
  EXPECT_THAT(read_field<char>(*data, 0, {5, 0, 1, 2, 3, 4, 0}), ElementsAre('c', 'a', 'a', 'a', 'b', 'b', 'a'));
  EXPECT_THAT(read_field<std::int64_t>(*data, 1, {4, 5}), ElementsAre(2, 1));
  EXPECT_THAT(data->blocks().samples, ElementsAre(3, 2, 1));
  EXPECT_EQ(data->where(4), path("x-b") + ", offset 1");
  data->will_read(0, 6);
  EXPECT_THAT(failure([&] { read_field<char>(*data, 0, {6}); }), HasSubstr("sample 6 of a data set of 6"));
}

TEST_F(FilesTest, PatternsThatDoNotFit) {
  write("x-1", "a");
  write("x-2", "a");
  write("y-1", bytes_of<std::int64_t>({1}));
  EXPECT_THAT(failure([&] {
                open({{"features", path("z-*")}, {"target", path("y-*")}});
              }),
              HasSubstr("no file matches this pattern"));
  EXPECT_THAT(failure([&] {
                open({{"features", path("x-*")}, {"target", path("y-*")}});
              }),
              AllOf(HasSubstr("names 2 files"), HasSubstr("names 1")));
  write("[z]*", "a");  // a name, where such a file exists
  EXPECT_THAT(matching_files(path("[z]*")), ElementsAre(path("[z]*")));
  EXPECT_THAT(matching_files(path("none")), ElementsAre(path("none")));  // opening it names the error
}

TEST_F(FilesTest, FilesOfOtherShapesAreRefused) {
  write("t-1.csv", "a,b\n1,2\n");
  write("t-2.csv", "b,a\n1,2\n");
  EXPECT_THAT(failure([&] {
                Csv().open({{"file", path("t-*.csv")}}, no_sharing());
              }),
              AllOf(HasSubstr("t-2.csv: column 1 is 'b', but in"), HasSubstr("t-1.csv it is 'a'")));
  write("t-2.csv", "a,b,c\n1,2,3\n");
  EXPECT_THAT(failure([&] {
                Csv().open({{"file", path("t-*.csv")}}, no_sharing());
              }),
              AllOf(HasSubstr("t-2.csv: it has 3 columns, but"), HasSubstr("t-1.csv has 2")));
  Csv plain;
  plain.header = false;
  write("t-1.csv", "1,2\n");
  write("t-2.csv", "1,2,3\n");
  EXPECT_THAT(failure([&] {
                plain.open({{"file", path("t-*.csv")}}, no_sharing());
              }),
              AllOf(HasSubstr("features float32 [2]"), HasSubstr("features float32 [1] in the first")));
}

}  // namespace
}  // namespace dtrain::data
