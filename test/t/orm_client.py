"""A worker that writes guarded tables by an ORM, as an application would.

It knows nothing of guards but that its rows carry a token: before each flush
the token of its lease is set on what is about to be written, and flagged as
modified, since an ORM leaves out of an UPDATE what has not changed.  It is told
what to do on standard input, a JSON list a line, and answers with one line
each: what was asked for, "ok", or the SQLSTATE of the error.

usage: orm_client.py CONNINFO
"""
import json
import sys

from sqlalchemy import (BigInteger, Column, ForeignKey, Integer, Text,
                        create_engine, event, func, select, text, update)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, declarative_base, relationship
from sqlalchemy.orm.attributes import flag_modified

Base = declarative_base()


class Document(Base):
    __tablename__ = "document"
    id = Column(Integer, primary_key=True)
    token = Column(BigInteger)
    body = Column(Text)
    lines = relationship("Line", order_by="Line.id")


class Line(Base):
    __tablename__ = "line"
    id = Column(Integer, primary_key=True)
    document_id = Column(Integer, ForeignKey("document.id"))
    token = Column(BigInteger)
    body = Column(Text)


class Worker:
    def __init__(self, conninfo):
        engine = create_engine("postgresql+psycopg2://",
                               connect_args=dict(pair.split("=", 1) for pair in conninfo.split()))
        self.tokens = {}
        self.flag = True
        self.loaded = {}            # a session alone lets go of what it has loaded
        self.transactional = Session(engine)
        # Every statement is a transaction.
        self.session = Session(engine.execution_options(isolation_level="AUTOCOMMIT"),
                               expire_on_commit=False)
        for session in (self.session, self.transactional):
            event.listen(session, "before_flush", self.set_tokens)

    def set_tokens(self, session, context, instances):
        for row in session.new | session.dirty:
            document = row.id if isinstance(row, Document) else row.document_id
            if document in self.tokens:
                row.token = self.tokens[document]
                if self.flag:
                    flag_modified(row, "token")

    def pid(self):
        return self.session.execute(text("SELECT pg_backend_pid()")).scalar()

    def acquire(self, document, owner, ttl):
        self.tokens[document] = self.session.execute(select(func.lease_lock.acquire(
            f"document/{document}", owner, text(f"'{ttl}'::interval"), text("'1 min'::interval")))).scalar()
        return self.tokens[document]

    def renew(self, document, ttl):
        return self.session.execute(select(func.lease_lock.renew(
            f"document/{document}", self.tokens[document], text(f"'{ttl}'::interval")))).scalar() is not None

    def set_flag(self, flag):
        self.flag = flag

    def no_token(self, document):
        del self.tokens[document]

    # The unit of work: objects that are added, changed and deleted, and a flush.

    def add(self, document, body, lines=()):
        self.session.add(Document(id=document, body=body))
        self.session.flush()
        if lines:
            self.add_lines(document, lines)

    def add_lines(self, document, lines):
        self.session.add_all([Line(id=n, document_id=document, body=body) for n, body in lines])
        self.session.flush()

    def load(self, document):
        row = self.loaded[document] = self.session.get(Document, document, populate_existing=True)
        return [row.token, row.body, [[line.id, line.body] for line in row.lines]]

    def change(self, document, body):
        """Of the object as it was loaded, however long ago."""
        self.session.get(Document, document).body = body
        self.session.flush()

    def change_all(self, document, body):
        """The document and its lines in one flush."""
        row = self.session.get(Document, document)
        row.body = body
        for line in row.lines:
            line.body = body
        self.session.flush()

    def delete(self, document):
        self.session.delete(self.session.get(Document, document))
        self.session.flush()

    # Statements that the ORM makes of expressions.

    def update_where(self, document, body):
        self.session.execute(update(Line).where(Line.document_id == document)
                             .values(body=body, token=self.tokens[document])
                             .execution_options(synchronize_session=False))

    def update_without_token(self, document, body):
        self.session.execute(update(Document).where(Document.id == document)
                             .values(body=body).execution_options(synchronize_session=False))

    def upsert(self, document, body):
        values = {"body": body, "token": self.tokens[document]}
        self.session.execute(insert(Document).values(id=document, **values)
                             .on_conflict_do_update(index_elements=["id"], set_=values))

    # In a transaction.

    def change_in_transaction(self, document, body):
        with self.transactional as session, session.begin():
            row = session.get(Document, document)
            row.body = body
            session.add(Line(id=1000, document_id=document, body=body))

    def delete_in_transaction(self, document, present):
        with self.transactional as session, session.begin():
            if present:
                session.execute(select(func.lease_lock.present(f"document/{document}", self.tokens[document])))
            row = session.get(Document, document)
            for line in row.lines:
                session.delete(line)
            session.flush()
            session.delete(row)


def main():
    worker = Worker(sys.argv[1])
    for line in sys.stdin:
        name, *args = json.loads(line)
        try:
            answer = getattr(worker, name)(*args)
            worker.session.commit()
        except DBAPIError as error:
            worker.session.rollback()
            answer = getattr(error.orig, "pgcode", None) or str(error.orig)
        print(json.dumps("ok" if answer is None else answer), flush=True)


main()
