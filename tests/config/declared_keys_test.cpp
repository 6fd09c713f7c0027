// Keys of a test alone, declared as those of the experiment file are: reader, JSON, schema and table come from that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "document/document.h"
#include "dtrain/config/diagnostic.h"
#include "harness/document_table.h"
#include "key_table.h"
#include "keys/visitors.h"

namespace dtrain::config {
namespace {

using testing::ElementsAre;

enum class Tea { kGreen, kBlack };
constexpr std::array kTeas{Word<Tea>{"green", Tea::kGreen}, Word<Tea>{"black", Tea::kBlack}};

struct Milk {
  double share = 0.1;
};

void declare_keys(Keys& keys, Milk& milk) {
  keys.number({"share", "The part of the cup that is milk."}, milk.share, {.min = 0, .max = 1, .below_max = true});
}

struct Teapot {
  int cups = 2;
  std::optional<int> most_cups;
  double temperature = 80;
  bool whistle = false;
  Tea tea = Tea::kGreen;
  int seconds = 90;
  std::string owner = "nobody";
  std::vector<std::string> guests;
  Length rest{LengthUnit::kBatches, 3};
  std::filesystem::path recipe;
  std::optional<Milk> milk;
};

void declare_keys(Keys& keys, Teapot& pot) {
  keys.integer({.name = "cups", .text = "How many it holds.", .examples = "[4]", .required = "a number of cups"},
               pot.cups, {1, 12});
  keys.integer({"most_cups", "How many it may ever hold."}, pot.most_cups, {1, 99});
  keys.number({.name = "temperature", .text = "Of the water.", .unit = "degrees"}, pot.temperature, {20, 100});
  keys.boolean({"whistle", "Whether it is heard.", "See [noise](noise.md)."}, pot.whistle);
  keys.choice({.name = "tea", .text = "Which leaves.", .not_yet = "use green or black"}, pot.tea, kTeas, {"white"});
  keys.only_with("tea", kTeas, pot.tea, {Tea::kBlack}, [&](Keys& own) {
    own.integer({"seconds", "Of black tea: when it is done."}, pot.seconds, {1, 600});
  });
  keys.text({"owner", "Who may pour."}, pot.owner, kName);
  keys.texts({"guests", "Who drinks."}, pot.guests);
  keys.length({"rest", "Between two pots."}, pot.rest, 0);
  keys.path({"recipe", "A file."}, pot.recipe, kAnyText, true);
  keys.mapping({"milk", "What comes in first."}, pot.milk);
  keys.when_read([&](Section& section) {
    if (pot.most_cups && *pot.most_cups < pot.cups)
      section.report(*section.find("most_cups"), "most_cups", "is less than cups");
  });
}

Teapot read_teapot(const std::string& text) {
  Collector collector("folder/pot.yaml");
  Teapot pot;
  const auto document = parse_yaml(text, collector);
  Section section(&*document, "", document->at, collector);
  KeyReader::read_all(section, [&](Keys& keys) { declare_keys(keys, pot); });
  collector.throw_if_any();
  return pot;
}

std::string errors_of_teapot(const std::string& text) {
  try {
    read_teapot(text);
  } catch (const ConfigErrors& errors) {
    return errors.what();
  }
  return "";
}

std::string teapot_json(Teapot pot) {
  return to_line(PlanWriter::write([&](Keys& keys) { declare_keys(keys, pot); }));
}

Json teapot_schema() {
  Teapot defaults;
  return SchemaWriter::write([&](Keys& keys) { declare_keys(keys, defaults); });
}

TEST(DeclaredKeys, AreRead) {
  const Teapot pot = read_teapot(R"(
cups: 4
most_cups: 6
temperature: 95.5
whistle: true
tea: black
seconds: 240
owner: me
guests: [you, her]
rest: {epochs: 1}
recipe: tea.txt
milk: {share: 0.25}
)");
  EXPECT_EQ(pot.cups, 4);
  EXPECT_EQ(pot.most_cups, 6);
  EXPECT_EQ(pot.temperature, 95.5);
  EXPECT_TRUE(pot.whistle);
  EXPECT_EQ(pot.tea, Tea::kBlack);
  EXPECT_EQ(pot.seconds, 240);
  EXPECT_EQ(pot.owner, "me");
  EXPECT_THAT(pot.guests, ElementsAre("you", "her"));
  EXPECT_EQ(pot.rest, (Length{LengthUnit::kEpochs, 1}));
  EXPECT_EQ(pot.recipe, std::filesystem::absolute("folder/tea.txt"));
  ASSERT_TRUE(pot.milk);
  EXPECT_EQ(pot.milk->share, 0.25);
}

TEST(DeclaredKeys, KeepTheirDefaults) {
  const Teapot pot = read_teapot("cups: 1\n");
  EXPECT_EQ(pot.seconds, 90);
  EXPECT_EQ(pot.owner, "nobody");
  EXPECT_FALSE(pot.most_cups);
  EXPECT_FALSE(pot.milk);
  EXPECT_EQ(read_teapot("{cups: 1, milk: {}}").milk->share, 0.1);
}

TEST(DeclaredKeys, ReportEveryErrorWithItsLine) {
  EXPECT_EQ(errors_of_teapot(R"(most_cups: 0
temperature: 5
whistle: yes
tea: white
seconds: 10
owner: ""
guests: 5
rest: {batches: -1}
recipe: []
milk: {share: 1}
cusp: 3
)"),
            "folder/pot.yaml:1: cups: required key is missing: a number of cups; is it 'cusp' on line 11?\n"
            "folder/pot.yaml:1: most_cups: must be a whole number from 1 to 99, not '0'\n"
            "folder/pot.yaml:2: temperature: must be a number from 20 to 100, not '5'\n"
            "folder/pot.yaml:3: whistle: must be true or false, not 'yes'; did you mean 'true'?\n"
            "folder/pot.yaml:4: tea: 'white' is not supported yet; use green or black\n"
            "folder/pot.yaml:5: seconds: has no effect with tea green; black has it\n"
            "folder/pot.yaml:6: owner: must be a name, not '' (quoted, so text)\n"
            "folder/pot.yaml:7: guests: must be a list of texts, not '5'\n"
            "folder/pot.yaml:8: rest.batches: must be a whole number of at least 0, not '-1'\n"
            "folder/pot.yaml:9: recipe: must be text, not an empty list\n"
            "folder/pot.yaml:10: milk.share: must be below 1, not '1'\n"
            "folder/pot.yaml:11: cusp: unknown key; did you mean 'cups'?");
  EXPECT_EQ(errors_of_teapot("cups: 5\nmost_cups: 3\n"), "folder/pot.yaml:2: most_cups: is less than cups");
}

TEST(DeclaredKeys, AreShownInThePlan) {
  EXPECT_EQ(teapot_json({}),
            R"({"cups":2,"most_cups":null,"temperature":80,"whistle":false,"tea":"green","owner":"nobody","guests":[],)"
            R"("rest":{"batches":3},"recipe":null,"milk":null})");
  EXPECT_EQ(teapot_json({.most_cups = 3, .tea = Tea::kBlack, .recipe = "a", .milk = Milk{0.5}}),
            R"({"cups":2,"most_cups":3,"temperature":80,"whistle":false,"tea":"black","seconds":90,"owner":"nobody",)"
            R"("guests":[],"rest":{"batches":3},"recipe":"a","milk":{"share":0.5}})");
}

TEST(DeclaredKeys, HaveASchema) {
  const Json schema = teapot_schema();
  EXPECT_EQ(schema["required"], Json({"cups"}));
  const auto property = [&](const char* name) { return to_line(schema["properties"][name]); };
  EXPECT_EQ(property("cups"),
            R"({"description":"How many it holds.","type":"integer","minimum":1,"maximum":12,"examples":[4]})");
  EXPECT_EQ(
      property("temperature"),
      R"({"description":"Of the water. Unit: degrees.","type":"number","minimum":20,"maximum":100,"default":80})");
  EXPECT_EQ(property("tea"), R"({"description":"Which leaves.","enum":["green","black"],"default":"green"})");
  EXPECT_EQ(property("milk"),
            R"({"description":"What comes in first.","type":["object","null"],"additionalProperties":false,)"
            R"("properties":{"share":{"description":"The part of the cup that is milk.","type":"number","minimum":0,)"
            R"("exclusiveMaximum":1,"default":0.1}},"default":null})");
  EXPECT_EQ(to_line(schema["allOf"]), R"([{"if":{"required":["tea"],"properties":{"tea":{"enum":["green"]}}},)"
                                      R"("then":{"properties":{"seconds":false}}}])");
}

TEST(DeclaredKeys, HaveATable) {
  Teapot defaults;
  const std::string table =
      key_table([&](Keys& keys) { declare_keys(keys, defaults); }, [](const std::string&) { return true; });
  EXPECT_EQ(table,
            "| key | value | default | meaning |\n"
            "|---|---|---|---|\n"
            "| `cups` | 1 to 12 | required | How many it holds. |\n"
            "| `most_cups` | 1 to 99 or null | null | How many it may ever hold. |\n"
            "| `temperature` | 20 to 100 degrees | 80 | Of the water. |\n"
            "| `whistle` | true or false | `false` | Whether it is heard. See [noise](noise.md). |\n"
            "| `tea` | `green` or `black` | `green` | Which leaves. |\n"
            "| `seconds` | 1 to 600 | 90 | Of black tea: when it is done. |\n"
            "| `owner` | text | `nobody` | Who may pour. |\n"
            "| `guests` | list of texts | `[]` | Who drinks. |\n"
            "| `rest` | length | `{batches: 3}` | Between two pots. |\n"
            "| `recipe` | path or null | null | A file. |\n"
            "| `milk` | mapping or null | null | What comes in first. |\n"
            "| `milk.share` | 0 to below 1 | 0.1 | The part of the cup that is milk. |\n");
  EXPECT_EQ(harness::with_table("a\n<!-- keys: x -->\nold\n<!-- end of keys -->\nb\n", "keys: x", "new\n"),
            "a\n<!-- keys: x -->\n\nnew\n\n<!-- end of keys -->\nb\n");
  EXPECT_EQ(harness::with_table("a\n", "keys: x", "new\n"), "");
}

TEST(DeclaredKeys, SayWhichAreLengths) {
  Teapot pot;
  EXPECT_THAT(length_paths([&](Keys& keys) { declare_keys(keys, pot); }), ElementsAre("rest"));
}

}  // namespace
}  // namespace dtrain::config
