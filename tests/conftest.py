"""What holds for every test."""

from hypothesis import HealthCheck, settings

# A deadline would judge the machine, not the code; how long tests may take is pytest-timeout's business.
settings.register_profile("kurird", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kurird")
