// The operators of Python on numbers in an exported program, such as sums, products and comparisons of sizes.

#include <algorithm>
#include <cmath>
#include <limits>

#include "dtrain/base/error.h"
#include "exported/program.h"

namespace dtrain::exported {
namespace {

using c10::IValue;
using Operands = std::vector<IValue>;

bool is_float(const IValue& value) {
  return value.isDouble();
}
double real(const IValue& value) {
  return value.isDouble() ? value.toDouble()
         : value.isBool() ? (value.toBool() ? 1.0 : 0.0)
                          : static_cast<double>(value.toInt());
}
std::int64_t whole(const IValue& value) {
  return value.isBool() ? (value.toBool() ? 1 : 0) : value.toInt();
}
bool truth(const IValue& value) {
  return value.isDouble() ? value.toDouble() != 0 : whole(value) != 0;
}

[[noreturn]] void overflow() {
  throw Error("a size that the model computes does not fit in 64 bits");
}

// As in Python, the result is floating point if an operand is.
template <typename Whole, typename Real>
IValue arithmetic(const Operands& o, Whole whole_result, Real real_result) {
  if (is_float(o[0]) || is_float(o[1])) return real_result(real(o[0]), real(o[1]));
  std::int64_t result = 0;
  if (whole_result(whole(o[0]), whole(o[1]), &result)) overflow();
  return result;
}

template <typename Compare>
IValue compare(const Operands& o, Compare result) {
  if (is_float(o[0]) || is_float(o[1])) return result(real(o[0]), real(o[1]));
  return result(whole(o[0]), whole(o[1]));
}

void refuse_zero(const IValue& divisor) {
  if (!truth(divisor)) throw Error("the model divides a size by 0");
}

IValue floor_divide(const Operands& o) {
  refuse_zero(o[1]);
  if (is_float(o[0]) || is_float(o[1])) return std::floor(real(o[0]) / real(o[1]));
  const std::int64_t a = whole(o[0]), b = whole(o[1]);
  if (b == -1 && a == std::numeric_limits<std::int64_t>::min()) overflow();
  return a / b - ((a % b != 0 && (a % b < 0) != (b < 0)) ? 1 : 0);
}

IValue modulo(const Operands& o) {
  refuse_zero(o[1]);
  if (is_float(o[0]) || is_float(o[1])) {
    const double b = real(o[1]), rest = std::fmod(real(o[0]), b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  }
  const std::int64_t b = whole(o[1]);
  if (b == -1) return std::int64_t{0};
  const std::int64_t rest = whole(o[0]) % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

IValue power(const Operands& o) {
  if (is_float(o[0]) || is_float(o[1]) || whole(o[1]) < 0) return std::pow(real(o[0]), real(o[1]));
  std::int64_t result = 1;
  const std::int64_t base = whole(o[0]), exponent = whole(o[1]);
  if (exponent > 64 && base != 0 && base != 1) overflow();
  for (std::int64_t i = 0; i < std::min<std::int64_t>(exponent, 65); ++i) {
    if (__builtin_mul_overflow(result, base, &result)) overflow();
  }
  return result;
}

IValue to_whole(const IValue& value, double rounded) {
  if (!is_float(value)) return whole(value);
  if (!(std::abs(rounded) < 9.2e18)) overflow();
  return static_cast<std::int64_t>(rounded);
}

constexpr NamedNumberOperator kOperators[] = {
    {"_operator.add", 2,
     [](const Operands& o) {
       return arithmetic(
           o, [](auto a, auto b, auto* r) { return __builtin_add_overflow(a, b, r); },
           [](double a, double b) { return a + b; });
     }},
    {"_operator.sub", 2,
     [](const Operands& o) {
       return arithmetic(
           o, [](auto a, auto b, auto* r) { return __builtin_sub_overflow(a, b, r); },
           [](double a, double b) { return a - b; });
     }},
    {"_operator.mul", 2,
     [](const Operands& o) {
       return arithmetic(
           o, [](auto a, auto b, auto* r) { return __builtin_mul_overflow(a, b, r); },
           [](double a, double b) { return a * b; });
     }},
    {"_operator.floordiv", 2, floor_divide},
    {"_operator.truediv", 2,
     [](const Operands& o) -> IValue {
       refuse_zero(o[1]);
       return real(o[0]) / real(o[1]);
     }},
    {"_operator.mod", 2, modulo},
    {"_operator.pow", 2, power},
    {"_operator.neg", 1,
     [](const Operands& o) -> IValue {
       if (is_float(o[0])) return -real(o[0]);
       std::int64_t result = 0;
       if (__builtin_sub_overflow(std::int64_t{0}, whole(o[0]), &result)) overflow();
       return result;
     }},
    {"_operator.pos", 1, [](const Operands& o) -> IValue { return o[0]; }},
    {"_operator.eq", 2, [](const Operands& o) { return compare(o, [](auto a, auto b) { return IValue(a == b); }); }},
    {"_operator.ne", 2, [](const Operands& o) { return compare(o, [](auto a, auto b) { return IValue(a != b); }); }},
    {"_operator.le", 2, [](const Operands& o) { return compare(o, [](auto a, auto b) { return IValue(a <= b); }); }},
    {"_operator.ge", 2, [](const Operands& o) { return compare(o, [](auto a, auto b) { return IValue(a >= b); }); }},
    {"_operator.lt", 2, [](const Operands& o) { return compare(o, [](auto a, auto b) { return IValue(a < b); }); }},
    {"_operator.gt", 2, [](const Operands& o) { return compare(o, [](auto a, auto b) { return IValue(a > b); }); }},
    {"_operator.and_", 2,
     [](const Operands& o) -> IValue {
       if (o[0].isBool() && o[1].isBool()) return o[0].toBool() && o[1].toBool();
       return whole(o[0]) & whole(o[1]);
     }},
    {"_operator.or_", 2,
     [](const Operands& o) -> IValue {
       if (o[0].isBool() && o[1].isBool()) return o[0].toBool() || o[1].toBool();
       return whole(o[0]) | whole(o[1]);
     }},
    {"math.trunc", 1, [](const Operands& o) { return to_whole(o[0], std::trunc(real(o[0]))); }},
    {"math.floor", 1, [](const Operands& o) { return to_whole(o[0], std::floor(real(o[0]))); }},
    {"math.ceil", 1, [](const Operands& o) { return to_whole(o[0], std::ceil(real(o[0]))); }},
    {"torch.sym_not", 1, [](const Operands& o) -> IValue { return !truth(o[0]); }},
    {"torch.sym_int", 1, [](const Operands& o) { return to_whole(o[0], std::trunc(real(o[0]))); }},
    {"torch.sym_float", 1, [](const Operands& o) -> IValue { return real(o[0]); }},
    {"torch.sym_max", 2,
     [](const Operands& o) {
       return arithmetic(
           o, [](auto a, auto b, auto* r) { return *r = std::max(a, b), false; },
           [](double a, double b) { return std::max(a, b); });
     }},
    {"torch.sym_min", 2,
     [](const Operands& o) {
       return arithmetic(
           o, [](auto a, auto b, auto* r) { return *r = std::min(a, b), false; },
           [](double a, double b) { return std::min(a, b); });
     }},
    {"torch.sym_ite", 3, [](const Operands& o) -> IValue { return truth(o[0]) ? o[1] : o[2]; }},
    {"torch._sym_sqrt", 1, [](const Operands& o) -> IValue { return std::sqrt(real(o[0])); }},
    {"torch.sym_sqrt", 1, [](const Operands& o) -> IValue { return std::sqrt(real(o[0])); }},
};

}  // namespace

const NamedNumberOperator* number_operator(const std::string& name) {
  const auto* found = std::find_if(std::begin(kOperators), std::end(kOperators),
                                   [&](const NamedNumberOperator& candidate) { return name == candidate.name; });
  return found == std::end(kOperators) ? nullptr : found;
}

}  // namespace dtrain::exported
