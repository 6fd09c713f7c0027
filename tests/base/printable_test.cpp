#include "dtrain/base/printable.h"

#include <gtest/gtest.h>

namespace dtrain {
namespace {

TEST(Printable, KeepsTextOfAllLanguages) {
  const std::string text = "loss 0.5\tµ — 学習 🙂\n";
  EXPECT_EQ(printable(text), text);
}

TEST(Printable, ControlCharactersBecomeEscapesOfJson) {
  EXPECT_EQ(printable("a\x1b[2Jb\a\r\x7f"), R"(a\u001b[2Jb\u0007\u000d\u007f)");
  EXPECT_EQ(printable(std::string("\0", 1)), R"(\u0000)");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            R"(\u009b2J)")
      << "U+009B begins a command of a terminal, as ESC [ does";
  EXPECT_EQ(printable("\u202Eabc\u2066\u2028"), R"(\u202eabc\u2066\u2028)") << "they reorder what is read";
}

TEST(Printable, BytesThatAreNoUtf8AreShown) {
  EXPECT_EQ(printable("\x9b"
                      "2J\xff"),
            R"(\x9b2J\xff)");
  EXPECT_EQ(printable("\xc0\x9b"), R"(\xc0\x9b)") << "an overlong form";
  EXPECT_EQ(printable("\xed\xa0\x80"), R"(\xed\xa0\x80)") << "a surrogate";
  EXPECT_EQ(printable("a\xe2\x82"), R"(a\xe2\x82)") << "cut off";
}

TEST(Printable, StylesStayWhereTheyAreAllowed) {
  EXPECT_EQ(printable("\x1b[1;31mred\x1b[0m", Styles::kKept), "\x1b[1;31mred\x1b[0m");
  EXPECT_EQ(printable("\x1b[1mbold", Styles::kNone), R"(\u001b[1mbold)");
  EXPECT_EQ(printable("\x1b[2J\x1b]0;title\a", Styles::kKept), R"(\u001b[2J\u001b]0;title\u0007)");
}

}  // namespace
}  // namespace dtrain
