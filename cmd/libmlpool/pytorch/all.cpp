#include "requests.cpp"
#include "pools.cpp"
#include "reports.cpp"
