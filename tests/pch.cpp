// Nothing: the target exists for its precompiled header (tests/CMakeLists.txt).
