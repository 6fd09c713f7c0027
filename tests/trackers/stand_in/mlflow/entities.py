from collections import namedtuple

Metric = namedtuple("Metric", "key value timestamp step")
Param = namedtuple("Param", "key value")
RunTag = namedtuple("RunTag", "key value")
