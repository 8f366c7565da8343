"""TLS of one host: the handshake, and of its certificate the chain, the name and the time."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from amqp_core.errors import AmqpError
from amqp_core.transport import Transport, lenient_context, tls_context
from amqp_spark.diagnosis.findings import Report, Status, listed

if TYPE_CHECKING:
    from cryptography import x509

    from amqp_core.address import ConnectOptions
    from amqp_spark.diagnosis.site import Host

SOON: Final = timedelta(days=30)
"""A certificate that ends within this time is a warning."""


def examine(report: Report, options: ConnectOptions, host: Host) -> bool:
    """Look at TLS; return whether the handshake works, with a certificate that is trusted or not."""
    section, timeout, wrong = host.section, options.connect_timeout, host.wrong
    try:
        transport = Transport.connect(host.name, host.port, timeout=timeout, context=lenient_context(options))
    except AmqpError as error:
        report.refused(section, "TLS", error, status=wrong)
        return False
    der, version = transport.certificate, transport.tls_version
    transport.close()
    report.ok(section, "TLS", version)
    if der is None:
        return True
    try:
        from cryptography import x509  # noqa: PLC0415 - that it is missing is a finding of its own
    except ImportError:
        report.skip(section, "certificate", "not looked at: package cryptography is missing")
        return True
    try:
        certificate = x509.load_der_x509_certificate(der)
        names, issuer = _names(certificate), certificate.issuer.rfc4514_string()
    except ValueError as error:
        report.skip(section, "certificate", f"it cannot be read: {error}")
        return True
    is_current = _examine_time(report, section, "certificate ends", certificate, wrong)
    is_trusted = False
    if not is_current:
        report.skip(section, "certificate chain", f"issued by {issuer}: not verified, since it is not valid now")
    else:
        is_trusted = _try(report, options, host, "certificate chain", f"issued by {issuer}")
    if not options.tls_verify_hostname:
        value = f"for {listed(names)}: not verified (tls.verifyHostname=false)"
        advice = (
            "Remove tls.verifyHostname: any server with a certificate of this authority could take the broker's place"
        )
        report.warn(section, "certificate name", value, advice)
    elif not is_trusted:
        report.skip(section, "certificate name", f"for {listed(names)}: not verified, since the chain is not")
    else:
        _try(report, options, host, "certificate name", f"for {listed(names)}", name=True)
    if options.tls_cert_file is not None:
        _examine_own(report, section, options.tls_cert_file)
    return True


def _try(report: Report, options: ConnectOptions, host: Host, what: str, value: str, *, name: bool = False) -> bool:
    """Connect and verify the chain, and with ``name`` the name, too; return whether that works."""
    context = tls_context(dataclasses.replace(options, tls_verify_hostname=name))
    try:
        Transport.connect(host.name, host.port, timeout=options.connect_timeout, context=context).close()
    except AmqpError as error:
        report.refused(host.section, what, error, status=host.wrong)
        return False
    report.ok(host.section, what, value)
    return True


def _examine_time(report: Report, section: str, what: str, certificate: x509.Certificate, wrong: Status) -> bool:
    """Report when a certificate ends; return whether it is valid now, by the clock of this machine."""
    now, begin, end = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    until = f"{end:%Y-%m-%d %H:%M} UTC"
    if now > end:
        report.add(section, what, wrong, f"{until}: it has expired", "Renew the certificate")
    elif now < begin:
        text = f"it is valid from {begin:%Y-%m-%d %H:%M} UTC on"
        report.add(section, what, wrong, text, "Set the clock of this machine")
    elif end - now < SOON:
        report.warn(section, what, f"{until}, in {(end - now).days} day(s)", "Renew it before")
    else:
        report.ok(section, what, until)
    return begin <= now <= end


def _examine_own(report: Report, section: str, path: str) -> None:
    """Look at the time of the client certificate. That it can be read is known: the handshake had it."""
    from cryptography import x509  # noqa: PLC0415 - as above

    certificate = x509.load_pem_x509_certificate(Path(path).read_bytes())
    _examine_time(report, section, "own certificate ends", certificate, Status.WARNING)


def _names(certificate: x509.Certificate) -> list[str]:
    """The names that a certificate is for: those of the extension, else its subject."""
    from cryptography import x509  # noqa: PLC0415 - as above

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return [certificate.subject.rfc4514_string()]
    return [str(each.value) for each in names]
