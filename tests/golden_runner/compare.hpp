// SPDX-License-Identifier: Apache-2.0
// Deviations from recorded results: the worst of each quantity, over tensors, elements and ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "comm/comm.hpp"

namespace golden {

class Report {
 public:
  // Compares numbers of one tensor, or part of it, to within `tolerance`; 0 means equal. `wide` is
  // the tolerance that a few values of the quantity may use (see rare_limit); 0: none.
  template <class Got, class Want>
  void compare(const std::string& quantity, const std::string& tensor, const Got* got,
               const Want* want, int64_t count, double tolerance, double wide = 0) {
    double worst = 0;
    int64_t beyond = 0;
    for (int64_t i = 0; i < count; ++i) {
      double d = deviation(double(got[i]), double(want[i]));
      if (d > worst) worst = d;
      beyond += d > tolerance;
    }
    note(quantity, tensor, worst, tolerance, count, beyond, worst > wide);
  }
  void compare(const std::string& quantity, const std::string& tensor, double got, double want,
               double tolerance) {
    compare(quantity, tensor, &got, &want, 1, tolerance);
  }
  // Records a condition that has no measure, with `problem` if it does not hold.
  void require(const std::string& quantity, const std::string& what, bool holds,
               const std::string& problem = "");
  void skip(const std::string& tensor) { ++skipped_[tensor]; }

  // Gives every rank the worst values of all ranks. Collective.
  void merge(comm::Comm& world);
  bool within() const;
  std::string table() const;

 private:
  struct Row {
    double deviation = 0, tolerance = 0, ratio = -1;  // of the tensor with the largest ratio
    std::string tensor;
    int64_t values = 0, beyond = 0;  // compared, and beyond their tolerance, on all ranks together
    bool far = false;                // a value is beyond the wide tolerance, too
    bool within() const;
  };
  static double deviation(double got, double want);  // infinite if a value is not a number
  // Returns the number of values that may exceed their tolerance if there is a wide tolerance.
  // Another order of summation rounds values next to a rounding boundary the other way. A value
  // stored in bfloat16 then moves by a step of 2^-8, and chance decides if its tolerance covers
  // that. Such values are rare: the published code itself, with the examples of a batch in another
  // order, has up to 3 in 70,000.
  static int64_t rare_limit(int64_t values) { return std::max<int64_t>(4, values / 1000); }
  void note(const std::string& quantity, const std::string& tensor, double deviation,
            double tolerance, int64_t values, int64_t beyond, bool far);
  Row& row(const std::string& quantity);

  std::vector<std::pair<std::string, Row>> rows_;  // in the order of their first comparison
  std::map<std::string, int> skipped_;
};

}  // namespace golden
